"""A store that versions share: what a newer one wrote stays, is said, and is never called a stranger's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild.formats import NEWER
from envbuild.image.file import ImageFile
from envbuild.image.model import MANIFEST_FORMAT
from envbuild.image.sif import MANIFEST
from envbuild.store.gc_roots import add_root, read_root
from envbuild.store.records import RECORD_FORMAT, read_record
from envbuild.store.store import Store
from envbuild.store.verdicts import RECORD_FORMAT as VERDICT_FORMAT
from envbuild.system.sealing import check_seal, sealed
from envbuild.workflows.settings import Settings
from tests.support import formats
from tests.support.stores import publish
from tests.unit.formats.conftest import Run

PRUNE = ("cache", "prune", "--older-than", "0s")


@pytest.fixture
def store(golden: Path) -> Path:
    return golden / "store"


def records(store: Path) -> dict[str, Path]:
    return {read_record(path).name: path for path in store.glob("layers/??/*.json")}


def raise_format(path: Path, number: int) -> None:
    """Have a sealed file a number to come, and a key that this version does not know."""
    data: dict[str, Any] = json.loads(check_seal(path.read_text()))
    del data["seal"]
    path.write_text(sealed(json.dumps({**data, "format": number, "to_come": 1})))


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_store_of_a_newer_format_is_left_alone(golden: Path, store: Path, run: Run) -> None:
    (store / "envbuild-store-1").rename(store / "envbuild-store-2")
    (store / "to-come").mkdir()
    before = tree(store)
    refusal = "it has format 2, and this version of envbuild reads format 1"
    for words in (("cache", "ls"), PRUNE, ("cache", "verify", "--repair"), ("build", "demo.yaml")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert f"the store `{store}` cannot be used: {refusal}" in err
        assert f"hint: {NEWER}; or name another store" in err
        assert "rm -rf" not in err
    code, _, err = run("layer", "import", "store", "--store", golden / "other")
    assert code == 2
    assert refusal in err
    assert NEWER in err
    code, _, err = run("build", "demo.yaml", "--upstream", "store", "--store", golden / "other")
    assert code == 2
    assert f"hint: {NEWER}" in err
    assert tree(store) == before


def test_a_layer_of_a_newer_format_stays_with_its_squashfs(store: Path, run: Run) -> None:
    """Which squashfs it names is not known: none that no other layer names is removed."""
    newer = records(store)["metadata"]
    before = tree(store)
    raise_format(newer, RECORD_FORMAT + 1)
    before[str(newer.relative_to(store))] = newer.read_bytes()
    free = publish(Store(store), "free")
    code, out, _ = run("cache", "ls")
    assert code == 0
    assert "1 layer of a newer version of envbuild: `cache prune` leaves them" in out
    code, out, err = run(*PRUNE)
    assert code == 0
    assert "left as they are: 1 layer of a newer version of envbuild, and 1 blob that they may name" in err
    assert [line.split()[-1] for line in out.splitlines()] == [free.name]
    code, out, _ = run("cache", "verify", "--repair")
    assert code == 4, "unknown is not whole"
    refusal = f"it has format {RECORD_FORMAT + 1}, and this version of envbuild reads format {RECORD_FORMAT}"
    assert f"newer {newer.resolve()}: {refusal}" in out.replace(str(store), str(store.resolve()))
    assert f"leave it: {NEWER}" in out
    assert out.endswith("read: 1 of a newer version\n")
    after = tree(store)
    assert {name: content for name, content in after.items() if name in before} == before


def test_a_root_of_a_newer_format_stops_prune(store: Path, run: Run) -> None:
    (path,) = (store / "roots").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2, "to_come": []}))
    before = tree(store)
    for words in (PRUNE, ("cache", "ls")):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert "it has format 2, and this version of envbuild reads format 1" in err
        assert f"hint: {NEWER}" in err
        assert "remove it" not in err
    code, out, _ = run("cache", "verify")
    assert code == 4
    assert f"leave it: {NEWER}" in out
    assert tree(store).items() >= before.items()


def test_an_image_of_a_newer_format_keeps_its_layers(golden: Path, store: Path, run: Run) -> None:
    """Its root is of a format that this version reads; its manifest is not."""
    image, kept = golden / "demo.sif", records(store)
    with ImageFile.open(image) as opened:
        assert opened.sif is not None
        descriptor, content = opened.sif.find(MANIFEST), opened.data(MANIFEST)
    assert descriptor is not None
    old, new = (b'"format":%d' % number for number in (MANIFEST_FORMAT, MANIFEST_FORMAT + 1))
    with image.open("r+b") as file:
        file.seek(descriptor.offset)
        file.write(content.replace(old, new))
    with ImageFile.open(image) as opened:
        digest = opened.manifest_digest
    (path,) = (store / "roots").iterdir()
    root = read_root(path)
    path.unlink()
    add_root(Store(store), root.model_copy(update={"path": str(image), "digest": digest}))
    code, out, _ = run(*PRUNE)
    assert code == 0
    assert "forgotten" not in out
    assert {"base", "venv"} <= records(store).keys() & kept.keys()
    # Another image at its place is not that image.
    shutil.copy(golden / "lock.yaml", image)
    code, out, _ = run(*PRUNE)
    assert f"forgotten: image {image}" in out
    assert records(store) == {}


def test_a_verdict_of_a_newer_format_does_not_count(store: Path, run: Run) -> None:
    (path,) = store.glob("verdicts/*/*.json")
    raise_format(path, VERDICT_FORMAT + 1)
    before = path.read_bytes()
    refusal = (
        f"it has format {VERDICT_FORMAT + 1}, and this version of envbuild reads format {VERDICT_FORMAT}"
    )
    for words in (("status", "demo.sif"), ("inspect", "demo.sif")):
        code, out, err = run(*words)
        assert "UNTESTED" in out
        assert f"does not count: {refusal} ({NEWER})" in err
        assert code == (4 if words[0] == "status" else 0)
    assert path.read_bytes() == before


def test_a_submission_of_a_newer_format(store: Path, run: Run) -> None:
    (store / "submission").mkdir()
    text = sealed(json.dumps({"format": 2, "arrays_to_come": []}))
    (store / "submission/submission.json").write_text(text)
    code, out, err = run("status", "--submitted")
    assert (code, out) == (2, "")
    assert "it has format 2, and this version of envbuild reads format 1" in err
    assert f"hint: {NEWER}" in err
    assert (store / "submission/submission.json").read_text() == text


def test_files_that_this_version_does_not_know_stay(store: Path, run: Run) -> None:
    (store / "to-come/deeper").mkdir(parents=True)
    (store / "to-come/deeper/file").write_text("x")
    (store / "file-to-come").write_text("y")
    strange = records(store)["base"].with_suffix(".to-come")
    strange.write_text("z")
    assert run(*PRUNE)[0] == 0
    code, out, _ = run("cache", "verify", "--repair")
    assert code == 4
    assert "remove it, unless a newer version of envbuild wrote it" in out
    assert (store / "to-come/deeper/file").exists()
    assert (store / "file-to-come").exists()
    assert strange.exists()


def test_versions_that_build_in_turn_share_a_store(golden: Path, store: Path, run: Run) -> None:
    """A newer version has replaced the record of a layer: this one builds that layer again."""
    raise_format(records(store)["venv"], RECORD_FORMAT + 1)
    (golden / "again").mkdir()
    shutil.copy(golden / "demo.yaml", golden / "again")
    formats.build(golden / "again/demo.yaml", Settings.of(store=store))
    assert {"base", "venv"} <= records(store).keys()
    with ImageFile.open(golden / "again/demo.sif") as image, ImageFile.open(golden / "demo.sif") as before:
        assert image.manifest.digest == before.manifest.digest
    assert run("cache", "verify")[0] == 0
