"""The mutants of `make mutants`: the same for the same seed, and each a small change that compiles."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.mutants import chosen, sites

ROOM = Path(__file__).resolve().parents[1] / "envbuild/plan"
NAMES = sorted(path.name for path in ROOM.glob("*.py"))


def tree(place: Path, names: Iterable[str]) -> Path:
    """Make a tree with the files of one room; return its place."""
    room = place / "envbuild" / ROOM.name
    room.mkdir(parents=True)
    for name in names:
        shutil.copy(ROOM / name, room)
    return place


def test_the_same_seed_gives_the_same_mutants(tmp_path: Path) -> None:
    first = chosen(tree(tmp_path / "a", NAMES), seed=1, count=20)
    assert first == chosen(tree(tmp_path / "b", reversed(NAMES)), seed=1, count=20)
    assert first != chosen(tmp_path / "a", seed=2, count=20)


def test_every_mutant_changes_its_place_alone_and_compiles(tmp_path: Path) -> None:
    for mutants in sites(tree(tmp_path, NAMES)):
        for mutant in mutants:
            source = (tmp_path / mutant.file).read_bytes()
            mutated = mutant.apply(source)
            end = mutant.start + len(mutant.before.encode())
            assert source[mutant.start : end].decode() == mutant.before
            assert (mutated[: mutant.start], mutated.endswith(source[end:])) == (source[: mutant.start], True)
            assert mutated != source
            ast.parse(mutated)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 'ä', a < b", {"'ä' -> \"mutant\"", "a < b -> (a <= b)"}),
        (
            "x = not a or 1 + b",
            {"not a or 1 + b -> (not a and 1 + b)", "not a -> (a)", "1 + b -> (1 - b)", "1 -> 2"},
        ),
        ("if a:\n    b()\n", {"a -> True", "a -> False", "b() -> pass"}),
        ("def f(a=None, *, b=()) -> int:\n    return a\n", {"None -> 0", "() -> None", "a -> None"}),
        ("def f() -> None:\n    return g\n", set()),
        ("\"\"\"Text.\"\"\"\n__all__ = ['f']\nx: Literal['a']\nK = Literal['a']\n", set()),
        ("if TYPE_CHECKING:\n    f(1)\n", set()),
        ("raise RequestError(f'{a < b}' 'no file', hint='seek')", set()),
    ],
)
def test_which_places_are_changed(text: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "envbuild").mkdir()
    (tmp_path / "envbuild/module.py").write_text(text)
    found = {f"{mutant.before} -> {mutant.after}" for mutants in sites(tmp_path) for mutant in mutants}
    assert found == expected
