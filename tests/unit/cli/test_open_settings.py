"""Settings that everybody can write to or replace are refused, wherever a command finds them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.inputs.catalog import find_catalog, read_base, read_benchmarks, read_recipe
from envbuild.inputs.knowledge import read_knowledge
from envbuild.inputs.sites import choose_site, read_site
from envbuild.system import files
from envbuild.workflows.settings import Settings
from envbuild.workflows.trust import valid_keys

TOP = Path(__file__).parents[3]
KEY = """\
-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""
TEXTS = {
    "config.yaml": "retirement_days: 90\n",
    "site.yaml": "name: here\n",
    "sites/lab.yaml": "name: lab\n",
    "base-images/debian-12.yaml": (TOP / "base-images/debian-12.yaml").read_text(),
    "knowledge/rows.yaml": "rows: []\n",
    "keys/envs.pub": KEY,
}
# A file in the machine's directory → a command's way to read it.
READERS: dict[str, Callable[[Path], object]] = {
    "config.yaml": lambda _: Settings.of(),
    "site.yaml": lambda _: choose_site(find_catalog(), None, None),
    "sites/lab.yaml": lambda _: read_site(Path("lab")),
    "base-images/debian-12.yaml": lambda _: read_base("debian-12"),
    "recipes/pytorch/recipe.yaml": lambda _: read_recipe("pytorch"),
    "recipes/pytorch/verify/ddp.py": lambda _: read_recipe("pytorch"),
    "recipes/pytorch/bench/start.py": lambda _: read_benchmarks(["pytorch"]),
    "knowledge/rows.yaml": lambda _: read_knowledge(),
    "keys/envs.pub": lambda path: valid_keys([(str(path), None)]),
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "srv/etc"
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", path)
    path.mkdir(parents=True)
    return path


def fill(directory: Path, name: str) -> Path:
    """Write a file that can be read, of a recipe all files, and return its path."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name in TEXTS:
        path.write_text(TEXTS[name])
    else:
        shutil.copytree(TOP / "recipes/pytorch", directory / "recipes/pytorch", dirs_exist_ok=True)
    return path


def on_the_way(path: Path, top: Path) -> Iterator[Path]:
    yield path
    yield from (parent for parent in path.parents if parent.is_relative_to(top))


@pytest.mark.redteam
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_everybody_can_write_to_or_replace_is_refused(
    machine: Path, name: str, tmp_path: Path
) -> None:
    path = fill(machine, name)
    READERS[name](path)
    for entry in on_the_way(path, tmp_path / "srv"):
        before = entry.stat().st_mode
        entry.chmod(before | 0o002)
        with pytest.raises(RequestError, match=f"everybody can write to `{entry}`") as caught:
            READERS[name](path)
        assert f"`chmod o-w {entry}`" in caught.value.hint
        # A group of the user's own is usual; in a directory such as /tmp no other user can rename an entry.
        entry.chmod(before | (0o1022 if entry.is_dir() else 0o020))
        READERS[name](path)
        entry.chmod(before)


@pytest.mark.redteam
def test_each_link_on_the_way_is_examined(machine: Path, tmp_path: Path) -> None:
    """A link can be replaced where it lies, whatever it leads to."""
    kept = fill(tmp_path / "kept", "sites/lab.yaml")
    steps = [tmp_path / "between", tmp_path / "last"]
    for step in steps:
        step.mkdir()
    (steps[1] / "real").symlink_to("../kept/sites")
    (steps[0] / "next.yaml").symlink_to(steps[1] / "real/lab.yaml")
    path = machine / "sites/lab.yaml"
    path.parent.mkdir()
    path.symlink_to("../../../between/next.yaml")
    assert read_site(Path("lab")) is not None
    for entry in (path.parent, *steps, kept.parent, kept.parent.parent, kept):
        before = entry.stat().st_mode
        entry.chmod(before | 0o002)
        with pytest.raises(RequestError, match=f"everybody can write to `{entry}`"):
            read_site(Path("lab"))
        entry.chmod(before)


@pytest.mark.redteam
def test_recipes_that_a_configuration_names_are_settings_and_those_of_an_option_are_not(
    machine: Path, tmp_path: Path
) -> None:
    recipe = fill(tmp_path / "apps", "recipes/pytorch/recipe.yaml").parent
    recipe.chmod(0o777)
    assert read_recipe("pytorch", recipes=[recipe.parent]).loaded.path.parent == recipe
    (machine / "config.yaml").write_text(f"recipes: [{recipe.parent}]\n")
    with pytest.raises(RequestError, match=f"everybody can write to `{recipe}`"):
        read_recipe("pytorch")


def test_of_a_directory_of_another_user_its_owner_is_asked(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fill(machine, "sites/lab.yaml")
    path.parent.chmod(0o777)
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
    with pytest.raises(RequestError) as caught:
        read_site(Path("lab"))
    assert caught.value.hint.startswith("ask its owner, ")
    assert caught.value.hint.endswith(f"for `chmod o-w {path.parent}`, or keep `{path}` elsewhere")
