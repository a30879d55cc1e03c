"""Noted answers: what was asked of files, and whether they would still answer so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.system import files, noted

LIMIT = 1000


def lay_out(place: Path) -> None:
    (place / "recipes/one").mkdir(parents=True)
    (place / "recipes/one/recipe.yaml").write_text("name: one\n")
    (place / "spec.yaml").write_text("name: x\n")


def ask(place: Path) -> list[noted.Answer]:
    with noted.noting() as answers:
        files.read_input(place / "spec.yaml", limit_bytes=LIMIT)
        files.exists(place / "site.yaml")
        files.is_directory(place / "recipes")
        files.list_directory(place / "recipes")
        files.list_directory(place / "nowhere")
        files.is_below(place / "recipes/one", place / "recipes")
    return answers


def link_out(path: Path, target: Path) -> None:
    path.rename(target)
    path.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda place: (place / "spec.yaml").write_text("name: y\n"),
    "gone": lambda place: (place / "spec.yaml").unlink(),
    "too large": lambda place: (place / "spec.yaml").write_text("#" * (LIMIT + 1)),
    "came": lambda place: (place / "site.yaml").write_text(""),
    "another name": lambda place: (place / "recipes/two").mkdir(),
    "a directory that came": lambda place: (place / "recipes").rename(place / "nowhere"),
    "no directory": lambda place: [
        (place / "recipes").rename(place / "r"),
        (place / "recipes").write_text(""),
    ],
    "a link out": lambda place: link_out(place / "recipes/one", place / "elsewhere"),
}


def test_what_nobody_changed_answers_as_before(tmp_path: Path) -> None:
    lay_out(tmp_path)
    answers = ask(tmp_path)
    assert len(answers) == 6
    assert noted.still(answers, LIMIT)
    os.utime(tmp_path / "spec.yaml", (1, 1))
    assert noted.still(answers, LIMIT), "times say nothing"


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_noticed(tmp_path: Path, change: str) -> None:
    lay_out(tmp_path)
    answers = ask(tmp_path)
    CHANGES[change](tmp_path)
    assert not noted.still(answers, LIMIT)


def test_nothing_is_noted_afterwards(tmp_path: Path) -> None:
    lay_out(tmp_path)
    answers = ask(tmp_path)
    files.exists(tmp_path)
    with pytest.raises(RequestError):
        files.read_input(tmp_path / "nowhere", limit_bytes=LIMIT)
    assert len(answers) == 6


def test_a_file_that_is_written_has_another_signature(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert noted.signature(file) == []
    file.write_text("a")
    before = noted.signature(file)
    status = file.stat()
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert noted.signature(file) != before, "its change time tells"


def test_this_program_has_one_identity() -> None:
    assert noted.program() == noted.program()


@pytest.mark.parametrize(
    ("changed_ns", "at_ns", "expected"),
    [
        (1_000_000_000_123, 1_000_060_000_123, True),
        (1_000_000_000_123, 1_000_040_000_123, False),
        # Whole seconds: a change a second later has the same time.
        (1_000_000_000_000, 1_001_000_000_000, False),
        (1_000_000_000_000, 1_003_000_000_000, True),
    ],
)
def test_a_file_that_was_left_alone_for_a_while_is_settled(
    changed_ns: int, at_ns: int, expected: bool
) -> None:
    assert noted.settled([1, 2, 3, 4, changed_ns], at_ns) is expected


def test_a_file_that_is_not_there_is_not_settled(tmp_path: Path) -> None:
    assert noted.settled(noted.signature(tmp_path / "none")) is False
