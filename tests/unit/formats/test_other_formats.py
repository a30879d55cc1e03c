"""Files of a format to come, or of one that is gone: refused with name, both numbers and the way out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.bench import history
from envbuild.errors import RequestError
from envbuild.events import Event, Warned
from envbuild.formats import NEWER, FormatError, check_format
from envbuild.image.extension import NOTE_FORMAT, NOTE_PATH
from envbuild.image.file import ImageFile
from envbuild.image.model import MANIFEST_FORMAT
from envbuild.image.sif import MANIFEST, NOTE
from envbuild.system import squashfs
from tests.support import trees
from tests.support.small_images import UNREAD, small_image
from tests.unit.formats.conftest import Run

# File of the golden directory → the words before it, the key of its number, the number that is read, and the
# hint for a number that is lower.
YAML: Mapping[str, tuple[tuple[str, ...], str, int, str]] = {
    "spec.yaml": (("plan",), "schema", 1, "write `schema: 1`"),
    "site.yaml": (("site", "check"), "schema", 1, "write `schema: 1`"),
    "recipe.yaml": (("recipes", "show"), "schema", 1, "write `schema: 1`"),
    "base.yaml": (("plan",), "schema", 1, "write `schema: 1`"),
    "knowledge.yaml": (("explain", "--knowledge"), "schema", 1, "write `schema: 1`"),
    "lock.yaml": (("cache", "pin"), "format", 2, "run `envbuild lock SPEC`"),
}


def refused(number: int, *read: int) -> str:
    known = f"format {read[0]}" if len(read) == 1 else f"formats {' and '.join(map(str, read))}"
    return f"it has format {number}, and this version of envbuild reads {known}"


@pytest.mark.parametrize("number", [1, -1])
@pytest.mark.parametrize("name", YAML)
def test_a_file_that_people_write(
    golden: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(golden / "config"))
    words, key, read, older = YAML[name]
    number += read
    path = golden / name
    text = re.sub(rf"^{key}: [0-9]+$", f"{key}: {number}\nto_come: 1", path.read_text(), flags=re.MULTILINE)
    assert f"{key}: {number}" in text
    path.write_text(text)
    arguments = _arguments(golden, name)
    code, out, err = run(*words, *arguments)
    assert (code, out) == (2, "")
    assert f"error: `{key}`: {refused(number, read)}\n  --> " in err
    assert re.search(rf"({name}|debian-12-centre\.yaml):[0-9]+:[0-9]+\n", err)
    assert (f"hint: {NEWER}" if number > read else older) in err
    assert err.count("error:") == 1, "the other keys of another format say nothing"


def _arguments(golden: Path, name: str) -> tuple[str | Path, ...]:
    if name == "recipe.yaml":
        (golden / "recipes/ringflow").mkdir(parents=True)
        shutil.move(golden / name, golden / "recipes/ringflow/recipe.yaml")
        return "ringflow", "--recipes", golden / "recipes"
    if name == "base.yaml":
        homes = golden / "config/envbuild/base-images"
        homes.mkdir(parents=True)
        shutil.move(golden / name, homes / "debian-12-centre.yaml")
        (golden / "spec.yaml").write_text('name: demo\nversion: "1"\nbase: debian-12-centre\n')
        return ("spec.yaml",)
    if name == "knowledge.yaml":
        return (golden / name, golden / "demo.sif", "--site", "leonardo")
    return (golden / name,)


@pytest.mark.parametrize("number", [MANIFEST_FORMAT + 1, MANIFEST_FORMAT - 2])
@pytest.mark.parametrize(
    "words",
    [("inspect",), ("check",), ("status",), ("sbom",), ("test",), ("extend", "--env", "A=b")],
    ids=" ".join,
)
def test_an_image(golden: Path, run: Run, words: tuple[str, ...], number: int) -> None:
    image = golden / "demo.sif"
    _patch(image, MANIFEST, b'"format":%d' % MANIFEST_FORMAT, b'"format":%d' % number)
    code, out, err = run(*words, image)
    assert (code, out) == (2, "")
    assert "`demo.sif` has a manifest that cannot be used" in err
    assert refused(number, MANIFEST_FORMAT - 1, MANIFEST_FORMAT) in err
    assert (NEWER if number > MANIFEST_FORMAT else "build the image again") in err


def test_a_plan_in_an_image(golden: Path, run: Run) -> None:
    """It is read where the image is built again, or extended."""
    image = small_image(golden, UNREAD, plan='{"format":4,"steps_to_come":[]}\n')
    code, _, err = run("cache", "pin", image)
    assert code == 2
    assert f"carries a plan that cannot be carried out: {refused(4, 3)}" in err
    assert NEWER in err


def test_a_note_on_additions(golden: Path, run: Run) -> None:
    tree = golden / "tree"
    note = {"format": NOTE_FORMAT + 1, "extensions": [], "to_come": 1}
    trees.write(tree, {NOTE_PATH: (json.dumps(note), 0o644)})
    squashfs.make(tree, golden / "newer.squashfs")
    for words in (("extend", "--show"), ("inspect",), ("status",)):
        code, _, err = run(*words, golden / "newer.squashfs")
        assert code == 2
        assert (
            f"has a note on what was added that cannot be used: {refused(NOTE_FORMAT + 1, NOTE_FORMAT)}"
            in err
        )
        assert NEWER in err


def test_a_note_on_additions_to_an_image_of_ours(golden: Path) -> None:
    layer = golden / "layer.squashfs"
    trees.write(golden / "tree", {"/etc/motd": ("hello\n", 0o644)})
    squashfs.make(golden / "tree", layer)
    trees.write_image(golden / "ours.sif", {"base": layer}, note=b'{"format":2,"extensions":[]}\n')
    with ImageFile.open(golden / "ours.sif") as image:
        assert image.sif is not None
        assert image.sif.find(NOTE)
        with pytest.raises(RequestError, match=refused(2, 1)):
            _ = image.note


def test_facts_of_another_format_are_read_from_the_files(golden: Path, run: Run) -> None:
    """Facts save time: without them the image is scanned."""
    code, _, _ = run("check", "demo.sif")
    assert code == 0
    image = small_image(golden, UNREAD, name="facts.sif", facts=b'{"format":9,"facts":[]}\n')
    assert run("inspect", image)[0] == 0


def test_the_record_of_a_module(golden: Path, run: Run) -> None:
    """A module of a newer version is neither removed nor replaced, and is not called that of a stranger."""
    (path,) = golden.glob("modules/envs/demo/.1-*/installed.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "format": 4, "to_come": 1}))
    before = _tree(golden / "modules")
    code, out, _ = run("module", "ls", "--root", "modules", "--json")
    assert code == 0
    assert any(refused(4, 3) in problem for problem in json.loads(out)[0]["problems"])
    code, _, err = run("module", "uninstall", "demo/1", "--root", "modules")
    assert code == 2
    assert f"error: the record of the module cannot be read: {refused(4, 3)}" in err
    assert "installed.json" in err
    assert f"hint: {NEWER}" in err
    assert "did not install" not in err
    code, _, err = run("module", "install", "demo.sif", "--root", "modules")
    assert code == 2
    assert f"hint: {NEWER}" in err
    assert _tree(golden / "modules") == before


def test_records_of_ranks(golden: Path, run: Run) -> None:
    path = golden / "records/rank-0.jsonl"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    code, _, err = run("observe", "records")
    assert code == 2
    assert f"rank-0.jsonl: {refused(2, 1)}" in err


def test_a_kept_result_of_a_benchmark(golden: Path) -> None:
    (path,) = (golden / "results").iterdir()
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    emitted: list[Event] = []
    assert history.read(golden / "results", "demo", emitted.append) == []
    (warning,) = emitted
    assert isinstance(warning, Warned)
    assert warning.text == f"`{path}` is not compared: {refused(2, 1)}"
    assert warning.hint == NEWER


@pytest.mark.parametrize("number", [None, True, "2", 1.5, [], 10**400, -(10**400)])
def test_a_number_that_is_not_one(number: object) -> None:
    with pytest.raises(FormatError) as caught:
        check_format(number, 2)
    assert len(str(caught.value)) < 120
    assert caught.value.is_newer is (number == 10**400)


def _patch(image: Path, name: str, old: bytes, new: bytes) -> None:
    """Write other bytes of the same length into a data object of an image."""
    with ImageFile.open(image) as opened:
        assert opened.sif is not None
        descriptor = opened.sif.find(name)
        assert descriptor is not None
        content = opened.data(name)
    assert content.count(old) == 1
    assert len(old) == len(new)
    image.chmod(0o644)
    with image.open("r+b") as file:
        file.seek(descriptor.offset)
        file.write(content.replace(old, new))


def _tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
