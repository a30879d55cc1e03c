"""Which specs the words of a command line name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.events import Event, Note, ignore
from envbuild.image.sif import LOCK
from envbuild.lock.model import LockFile
from envbuild.lock.text import dump_file, load
from envbuild.workflows import specs
from envbuild.workflows.lock import upgrades_of
from envbuild.workflows.specs import looks_like_spec, specs_of
from tests.support.images import read_data
from tests.support.resolved_specs import wheel
from tests.support.small_images import UNREAD, small_image

SPEC = 'name: demo\nversion: "1"\n'


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*names: str, text: str = SPEC) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names_of(*words: str) -> list[str]:
    return [member.name for member in specs_of([Path(word) for word in words], ignore).items]


def test_one_file_is_taken_as_it_is_named() -> None:
    # Also if it does not exist: reading it reports why.
    members = specs_of([Path("./nowhere.yaml")], ignore)
    assert ([member.path for member in members.items], members.many) == ([Path("nowhere.yaml")], False)


def test_a_directory_stands_for_the_specs_in_it_and_below() -> None:
    write(
        "d/b.yaml", "d/a.yml", "d/sub/c.yaml", "d/.hidden.yaml", "d/.git/x.yaml", "d/a.lock.yaml", "d/README"
    )
    assert names_of("d") == ["d/a.yml", "d/b.yaml", "d/sub/c.yaml"]
    assert specs_of([Path("d")], ignore).many


def test_a_directory_with_one_spec_is_shown_as_a_table() -> None:
    write("d/a.yaml")
    assert specs_of([Path("d")], ignore).many


def test_a_spec_that_is_named_twice_is_taken_once(tmp_path: Path) -> None:
    write("d/a.yaml", "d/b.yaml")
    assert names_of("d/b.yaml", "d", "./d/a.yaml", str(tmp_path / "d")) == ["d/a.yaml", "d/b.yaml"]


def test_linked_directories_are_not_followed() -> None:
    write("d/a.yaml")
    Path("d/loop").symlink_to(".")
    assert names_of("d") == ["d/a.yaml"]


def test_two_specs_with_one_lock_are_refused() -> None:
    write("d/a.yaml", "d/a.yml")
    with pytest.raises(RequestError, match=r"`d/a.yaml` and `d/a.yml` would both write `d/a.lock.yaml`"):
        specs_of([Path("d")], ignore)


def test_a_directory_without_specs() -> None:
    write("d/environment.yml", text="name: x\nchannels: [c]\ndependencies: [d]\n")
    events: list[Event] = []
    with pytest.raises(RequestError, match="there is no spec in the directory `d`"):
        specs_of([Path("d")], events.append)
    assert events == [Note(text="`d`: 1 other YAML file skipped")]


def test_a_directory_of_everything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "_MAX_ENTRIES", 2)
    write("d/a.yaml", "d/b.yaml", "d/c.yaml")
    with pytest.raises(RequestError, match="more than 2 entries"):
        specs_of([Path("d")], ignore)


@pytest.mark.parametrize(
    "text",
    [
        SPEC,
        'name: demo\nversion: "1"\nframworks: [jax]\n',  # a misspelt key
        "name: demo\n version: broken indentation\n",
        '"name": demo\n"version": "1"\n',
        "frameworks: [jax]\nmpi: mpich\n",  # the name is missing
        "name: demo\nversion: 1\nframeworks: [jax\n",
    ],
)
def test_a_broken_spec_is_not_skipped(text: str) -> None:
    write("x.yaml", text=text)
    assert looks_like_spec(Path("x.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name: x\nchannels: [c]\ndependencies: [d]\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {}\n",
        'version: "3"\nservices: {}\n',
        "name: ci\non: push\njobs: {}\n",
        "- a\n- b\n",
        "name: here\nsummary: a site, as short as one can be\n",
    ],
)
def test_other_yaml_files_are_not_specs(text: str) -> None:
    write("x.yaml", text=text)
    assert not looks_like_spec(Path("x.yaml"))


def test_recipes_base_images_and_sites_are_not_specs() -> None:
    top = Path(specs.__file__).parents[2]
    files = [
        *top.glob("recipes/*/recipe.yaml"),
        *top.glob("base-images/*.yaml"),
        *top.glob("examples/base-images/*.yaml"),
        *top.glob("sites/*.yaml"),
    ]
    assert len(files) > 10
    assert not [path for path in files if looks_like_spec(path)]


def test_every_example_is_a_spec() -> None:
    top = Path(specs.__file__).parents[2]
    examples = list(top.glob("examples/*.yaml"))
    assert examples
    assert [path for path in examples if not looks_like_spec(path)] == []


def test_a_package_to_upgrade_is_that_of_the_specs_that_have_it(desk: Path) -> None:
    write("d/one.yaml", "d/two.yaml", "d/new.yaml")
    image = small_image(desk, UNREAD, name="demo.sif")
    locked = load(read_data(image, LOCK), image)
    for name, package in (("one", "tabulate"), ("two", "humanize")):
        lock = replace(locked, python=(*locked.python, wheel(package)))
        Path(f"d/{name}.lock.yaml").write_text(dump_file(LockFile.of(lock)))
    members = specs_of([Path("d")], ignore)

    def upgrades(*names: str) -> dict[str, tuple[str, ...] | None]:
        found = upgrades_of(members, names, system_alone=False)
        return {path.stem: kept for path, kept in found.items()}

    # A spec without a lock takes newest versions anyway.
    assert upgrades("Tabulate") == {"one": ("Tabulate",), "two": None, "new": ("Tabulate",)}
    assert upgrades("tabulate", "humanize") == {
        "one": ("tabulate",),
        "two": ("humanize",),
        "new": ("tabulate", "humanize"),
    }
    # What none has is an error of each, as of one.
    assert set(upgrades("nowhere").values()) == {("nowhere",)}
