"""Whatever lies where a command reads settings, a spec or a lock: an error names it, and says what helps."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.cli.main import main
from envbuild.errors import EnvbuildError, render
from envbuild.inputs.catalog import find_catalog, read_base, read_recipe, recipe_of_path
from envbuild.inputs.facts import read_facts
from envbuild.inputs.knowledge import read_knowledge
from envbuild.inputs.sites import choose_site, read_site
from envbuild.inputs.spec import read_spec
from envbuild.spec.yamlfile import MAX_VALUES
from envbuild.system import files
from envbuild.workflows.lock import read_lock_file
from envbuild.workflows.settings import Settings

_BOMB = "".join(f"k{number}: &k{number} [{f'*k{number - 1},' * 9}]\n" for number in range(1, 12))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


BAD: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
    "loop of links": lambda path: path.symlink_to(path.name),
    "link that leads nowhere": lambda path: path.symlink_to("absent"),
    "file that cannot be read": lambda path: path.symlink_to("/proc/self/mem"),
    "huge file": _sparse,
    "not UTF-8": lambda path: _write(path, b"name: \xe4\n"),
    "zeros": lambda path: _write(path, bytes(1000)),
    "nested deeply": lambda path: _write(path, b"a: " + b"[" * 100_000),
    "alias bomb": lambda path: _write(path, b"k0: &k0 [x]\n" + _BOMB.encode()),
    "many wrong values": lambda path: _write(path, b"recipes: [" + b"1," * MAX_VALUES + b"]\n"),
    "keys twice": lambda path: _write(path, b"schema: 1\nschema: 1\n"),
    "values of other types": lambda path: _write(
        path, b"schema: [1]\nname: {a: b}\nstore: 3\ncuda.toolkit: [1]\n"
    ),
    "a list": lambda path: _write(path, b"- 1\n"),
    "text": lambda path: _write(path, b"hello\n"),
}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Directories of a user, of the machine, and of a project."""

    user: Path
    centre: Path
    project: Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    found = Machine(user=tmp_path / "config/envbuild", centre=tmp_path / "etc", project=tmp_path / "project")
    for directory in (found.user, found.centre, found.project):
        directory.mkdir(parents=True)
    return found


def _named_by_variable(machine: Machine) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVBUILD_CONFIG", str(machine.project / "config.yaml"))
        Settings.of()


# A file below one of the directories, and a command's way to read it.
READERS: dict[str, tuple[str, Callable[[Machine], object]]] = {
    "configuration of the user": ("user/config.yaml", lambda _: Settings.of()),
    "configuration of the machine": ("centre/config.yaml", lambda _: Settings.of()),
    "configuration by variable": ("project/config.yaml", _named_by_variable),
    "own site of the user": ("user/site.yaml", lambda _: choose_site(find_catalog(), None, None)),
    "own site of the machine": ("centre/site.yaml", lambda _: choose_site(find_catalog(), None, None)),
    "site by name": ("centre/sites/lab.yaml", lambda _: read_site(Path("lab"))),
    "site by path": ("project/lab.yaml", lambda machine: read_site(machine.project / "lab.yaml")),
    "base image": ("centre/base-images/debian-12.yaml", lambda _: read_base("debian-12")),
    "recipe": ("centre/recipes/pytorch/recipe.yaml", lambda _: read_recipe("pytorch")),
    "recipe by option": (
        "project/pytorch/recipe.yaml",
        lambda machine: read_recipe("pytorch", recipes=[machine.project]),
    ),
    "recipe by path": (
        "project/pytorch/recipe.yaml",
        lambda machine: (
            recipe_of_path(str(machine.project / "pytorch"))
            and read_recipe("pytorch", recipes=[machine.project])
        ),
    ),
    "rows of knowledge": ("centre/knowledge/rows.yaml", lambda _: read_knowledge()),
    "facts": ("project/facts.yaml", lambda machine: read_facts(machine.project / "facts.yaml")),
    "spec": ("project/spec.yaml", lambda machine: read_spec(machine.project / "spec.yaml")),
    "lock": ("project/spec.lock.yaml", lambda machine: read_lock_file(machine.project / "spec.yaml")),
}


@pytest.mark.redteam
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_an_error_with_its_name_and_a_hint(machine: Machine, kind: str, reader: str) -> None:
    place, read = READERS[reader]
    owner, _, name = place.partition("/")
    path: Path = getattr(machine, owner) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    BAD[kind](path)
    tracemalloc.start()
    try:
        with pytest.raises(EnvbuildError) as caught:
            read(machine)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.exit_code == 2
    for error in caught.value.each()[:50]:
        assert str(path) in render(error)
        assert error.hint
        assert "chmod" not in error.hint
    assert peak_bytes < 100 << 20


@pytest.mark.redteam
@pytest.mark.parametrize(
    "words",
    [
        ["lock", "spec.yaml", "--offline"],
        ["build", "spec.yaml", "--locked", "--offline"],
        ["build", "spec.yaml", "--offline", "-o", "loop"],
        ["build", "spec.yaml", "--offline", "--store", "loop"],
        ["lock", "loop", "--offline"],
        ["plan", "loop/spec.yaml", "spec.yaml"],
        ["layer", "import", "loop"],
        ["test", "loop"],
        ["inspect", "loop"],
        ["cache", "du", "--store", "loop"],
    ],
    ids=" ".join,
)
def test_a_loop_of_links_in_an_argument_is_an_error(
    machine: Machine, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(machine.project)
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine.project / "cache"))
    for name in ("loop", "spec.lock.yaml"):
        Path(name).symlink_to(name)
    Path("spec.yaml").write_text('name: small\nversion: "1"\n')
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "error: " in said
    assert "hint: " in said
    assert "loop" in said or "spec.lock.yaml" in said
