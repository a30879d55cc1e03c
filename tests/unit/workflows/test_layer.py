"""`envbuild layer import` of layers of a few bytes: what is taken, what is told, and what a store keeps."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.errors import RequestError
from envbuild.plan.model import FilesStep, Layer, key_of_data, step_fields
from envbuild.store import carried
from envbuild.store.carried import Origin
from envbuild.store.store import LayerRecord, Store
from envbuild.store.tree import Tree
from envbuild.store.verify import verify
from envbuild.system import host
from envbuild.system.sealing import sealed
from envbuild.system.squashfs import digests
from envbuild.workflows import layer as workflow
from envbuild.workflows.settings import Settings
from tests.support.stores import aged, flip
from tests.support.stores import layer as published

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[[Callable[[dict[str, Any]], None]], str]


def put(directory: Path, name: str, content: bytes, *, inputs: tuple[str, ...] = ()) -> LayerRecord:
    """Write a layer as `layer export` does."""
    step = step_fields(FilesStep(files=(), links={f"/{name}": "elsewhere"}, tools=()))
    directory.mkdir(exist_ok=True)
    written = directory / "written"
    written.write_bytes(content)
    found = digests(written)
    record = LayerRecord(
        key=key_of_data("FilesStep", step, list(inputs), "zstd"),
        name=name,
        blob=found.whole,
        size_bytes=len(content),
        data=found.data,
        tables=found.tables,
        tree=Tree(entries={name: "l elsewhere"}),
    )
    written.replace(directory / carried.squashfs_name(record))
    origin = Origin(kind="FilesStep", step=step, inputs=inputs, compression="zstd")
    (directory / carried.manifest_name(record.key)).write_text(carried.manifest(record, origin))
    return record


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest, and seal it anew."""
    data = json.loads(path.read_text())
    del data["seal"]
    change(data)
    path.write_text(sealed(json.dumps(data, sort_keys=True, separators=(",", ":"))) + "\n")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return tmp_path / "layers"


@pytest.fixture
def run(store: Store, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["layer", *map(str, words), "--store", str(store.root)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


@pytest.fixture
def refused(run: Run, layers: Path, store: Store) -> Refused:
    """Change the manifest of a layer, and return what its import says; nothing of it is in the store."""

    def call(change: Callable[[dict[str, Any]], None]) -> str:
        record = put(layers, "a", b"bytes of a")
        rewrite(layers / carried.manifest_name(record.key), change)
        code, _, err = run("import", layers)
        assert (code, store.records()) == (2, [])
        return err

    return call


def test_layers_are_in_the_store_as_they_were_elsewhere(run: Run, layers: Path, store: Store) -> None:
    first = put(layers, "a", b"bytes of a")
    second = put(layers, "b", b"bytes of b", inputs=(first.key,))
    code, out, err = run("import", layers)
    assert (code, out) == (0, "")
    assert "2 of 2 layers imported, 0 MB\n" in err
    assert store.get(first.key) == first
    assert store.get(second.key) == second
    assert verify(store).damages == ()
    assert list((store.root / "stage").iterdir()) == []


def test_what_is_there_stays(run: Run, layers: Path, store: Store) -> None:
    record = put(layers, "a", b"bytes of a")
    run("import", layers)
    before = store.blob_path(record.blob).stat().st_ino
    code, _, err = run("import", layers)
    assert code == 0
    assert "0 of 1 layers imported, 0 MB" in err
    assert store.blob_path(record.blob).stat().st_ino == before


def test_one_that_was_damaged_in_the_store_is_made_whole(run: Run, layers: Path, store: Store) -> None:
    record = put(layers, "a", b"bytes of a")
    run("import", layers)
    flip(store.blob_path(record.blob))
    assert "1 of 1 layers imported" in run("import", layers)[2]
    assert store.is_intact(record)


def test_other_bytes_under_one_key_are_told_and_not_taken(run: Run, layers: Path, store: Store) -> None:
    record = put(layers, "a", b"bytes of a")
    run("import", layers)
    other = put(layers, "a", b"not reproducible")
    assert other.key == record.key
    code, out, err = run("import", layers, "--json")
    assert code == 0
    assert '"text": "layer a: the store holds ' in err
    assert [row["state"] for row in json.loads(out)["layers"]] == ["differs"]
    assert store.get(record.key) == record


def test_all_that_is_damaged_is_told_at_once_and_the_rest_imported(
    run: Run, layers: Path, store: Store
) -> None:
    whole = put(layers, "whole", b"whole")
    flipped = put(layers, "flipped", b"flipped")
    flip(layers / carried.squashfs_name(flipped))
    cut = put(layers, "cut", b"cut")
    (layers / carried.squashfs_name(cut)).write_bytes(b"cu")
    missing = put(layers, "missing", b"missing")
    (layers / carried.squashfs_name(missing)).unlink()
    rotten = put(layers, "rotten", b"rotten")
    flip(layers / carried.manifest_name(rotten.key))
    moved = put(layers, "moved", b"moved")
    (layers / carried.manifest_name(moved.key)).rename(layers / f"{'0' * 64}.json")
    code, _, err = run("import", layers)
    assert code == 2
    assert err.count("error: ") == 5
    for said in (
        "the squashfs of layer flipped is damaged",
        "the squashfs of layer cut is damaged",
        "the squashfs of layer missing is missing",
        f"it is that of layer moved, {moved.key[7:19]}",
    ):
        assert said in err
    assert carried.manifest_name(rotten.key) in err
    assert "`sha256sum -c SHA256SUMS`" in err
    assert [record.name for record in store.records()] == ["whole"]
    assert store.get(whole.key) == whole


def test_what_is_listed_and_lost_is_told_and_the_rest_imported(run: Run, layers: Path, store: Store) -> None:
    put(layers, "whole", b"whole")
    lost = [put(layers, name, name.encode()) for name in ("lost", "lost too", "held")]
    run("import", layers)
    (layers / carried.SUMS).write_text(carried.sums(layers))
    for record in lost:
        (layers / carried.manifest_name(record.key)).unlink()
    for record in lost[:2]:
        store.record_path(record.key).unlink()
    code, _, err = run("import", layers)
    assert code == 2
    assert err.count("the manifest of a layer is missing: `SHA256SUMS` lists it") == 2
    assert all(carried.manifest_name(record.key) in err for record in lost[:2])
    assert {record.name for record in store.records()} == {"held", "whole"}
    (layers / carried.SUMS).unlink()
    assert run("import", layers)[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["made_by"]["step"]["links"].update(a="somewhere else"),
        lambda data: data["made_by"].update(kind="WheelStep"),
        lambda data: data["made_by"].update(compression="gzip"),
        lambda data: data["made_by"].update(inputs=[f"sha256:{'1' * 64}"]),
        lambda data: data.update(format=1),
    ],
)
def test_a_manifest_tells_of_no_other_step_than_the_layers_own(
    refused: Refused, change: Callable[[dict[str, Any]], None]
) -> None:
    err = refused(change)
    assert "another version of envbuild made it" in err
    assert "use the same version of envbuild on both sides" in err


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("made_by"),
        lambda data: data.pop("layer"),
        lambda data: data["layer"].update(blob="sha256:../../etc/passwd"),
        lambda data: data["layer"].update(data="sha256:0"),
        lambda data: data["layer"].pop("tables"),
        lambda data: data["layer"].update(size_bytes="10"),
        lambda data: data["layer"].update(tree=[]),
        lambda data: data["made_by"].update(inputs=7),
        lambda data: data["made_by"].pop("compression"),
    ],
)
def test_what_is_no_manifest_is_told(refused: Refused, change: Callable[[dict[str, Any]], None]) -> None:
    assert "a layer cannot be imported: " in refused(change)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"seal":"sha256:0",' + b"[" * 100_000])
def test_a_file_of_something_else_is_told(run: Run, layers: Path, content: bytes) -> None:
    layers.mkdir()
    (layers / f"{'a' * 64}.json").write_bytes(content)
    code, _, err = run("import", layers)
    assert code == 2
    assert re.search(r"a layer cannot be imported: .*\n  --> .*a{64}\.json", err)


def test_a_directory_without_layers_is_told(run: Run, tmp_path: Path) -> None:
    code, _, err = run("import", tmp_path)
    assert code == 2
    assert f"there is no manifest of a layer in `{tmp_path}`" in err
    assert "`envbuild layer export SPEC --to DIR`" in err
    code, _, err = run("import", tmp_path / "nowhere")
    assert code == 2
    assert "cannot be read: No such file or directory" in err


def test_sums_are_those_of_sha256sum(layers: Path) -> None:
    put(layers, "a", b"bytes of a")
    put(layers, "b", b"bytes of b")
    (layers / "notes.txt").write_text("of somebody else")
    (layers / carried.SUMS).write_text(carried.sums(layers))
    done = subprocess.run(["sha256sum", "-c", carried.SUMS], cwd=layers, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.count(": OK\n") == 4


def test_layers_that_are_not_finished_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = (
        Layer(name=name, key=f"sha256:{name * 64}", step=FilesStep(files=(), tools=())) for name in "ab"
    )
    plan = SimpleNamespace(image_layers=tuple(planned))
    monkeypatch.setattr(workflow, "lock_spec", lambda *_, **__: SimpleNamespace(lock=None))
    monkeypatch.setattr(workflow, "design", lambda *_, **__: plan)
    monkeypatch.setattr(workflow, "hold", lambda *_: None)
    settings = Settings(store=Store(tmp_path / "store"))
    with pytest.raises(RequestError, match=r"the store lacks finished layers of `spec\.yaml`: a, b"):
        workflow.export_layers(Path("spec.yaml"), settings, to=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "tree",
    [
        {"/etc/x": "d 0755"},
        {"../x": "d 0755"},
        {"a/../b": "d 0755"},
        {"a//b": "d 0755"},
        {"a/": "d 0755"},
        {"": "d 0755"},
        {"a": "device"},
        {"a": "f 0644"},
        {"a": "l "},
    ],
)
def test_a_manifest_lists_paths_of_an_image_alone(refused: Refused, tree: dict[str, str]) -> None:
    assert "it is no manifest of a layer" in refused(lambda data: data["layer"].update(tree=tree))


def test_what_a_store_refuses_is_no_damage(
    run: Run, layers: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(layers, "a", b"bytes of a")
    put(layers, "b", b"bytes of b")
    store.directory("blobs").joinpath("sha256").write_text("in the way")
    code, out, err = run("import", layers, "--json")
    assert code == 5
    assert err.count("error: ") == 1, "it is the same for all"
    assert "cannot be written" in err
    assert "copy it again" not in err
    assert json.loads(out)["layers"] == []


def test_bytes_that_are_not_there_do_not_differ(run: Run, layers: Path) -> None:
    record = put(layers, "a", b"bytes of a")
    run("import", layers)
    path = layers / carried.manifest_name(record.key)
    rewrite(path, lambda data: data["layer"].update(blob=f"sha256:{'0' * 64}"))
    code, _, err = run("import", layers)
    assert code == 2
    assert "the squashfs of layer a is missing" in err


def test_what_is_imported_again_is_young_again(run: Run, layers: Path, store: Store) -> None:
    record = put(layers, "a", b"bytes of a")
    run("import", layers)
    aged(store.record_path(record.key), 3)
    before = store.record_path(record.key).stat().st_mtime
    run("import", layers)
    assert store.record_path(record.key).stat().st_mtime > before + 86_400


def test_what_is_no_store_becomes_none(run: Run, layers: Path, store: Store) -> None:
    put(layers, "a", b"bytes of a")
    store.root.mkdir()
    (store.root / "letter.txt").touch()
    code, _, err = run("import", layers)
    assert code == 2
    assert "holds nothing that a store holds" in err
    assert [path.name for path in store.root.iterdir()] == ["letter.txt"]


class TestExport:
    """One planned layer, written to a directory."""

    @pytest.fixture
    def planned(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> LayerRecord:
        record = published(store, "a")
        layer = Layer(name="a", key=record.key, step=FilesStep(files=(), tools=()))
        plan = SimpleNamespace(image_layers=(layer,), layers=(layer,))
        monkeypatch.setattr(workflow, "lock_spec", lambda *_, **__: SimpleNamespace(lock=None))
        monkeypatch.setattr(workflow, "design", lambda *_, **__: plan)
        monkeypatch.setattr(workflow, "hold", lambda *_: None)
        return record

    def test_links_in_the_directory_lead_nowhere(
        self, run: Run, layers: Path, store: Store, planned: LayerRecord, tmp_path: Path
    ) -> None:
        layers.mkdir()
        victim = tmp_path / "victim"
        victim.write_bytes(store.blob_path(planned.blob).read_bytes())
        names = [carried.manifest_name(planned.key), carried.squashfs_name(planned), carried.SUMS]
        for name in names:
            (layers / name).symlink_to(victim)
        assert run("export", "x.yaml", "--to", layers)[0] == 0
        assert victim.read_bytes() == store.blob_path(planned.blob).read_bytes()
        assert not any((layers / name).is_symlink() for name in names)

    def test_what_is_there_is_not_written_again_and_half_files_go(
        self, run: Run, layers: Path, planned: LayerRecord
    ) -> None:
        run("export", "x.yaml", "--to", layers)
        ended = subprocess.Popen(["true"])
        ended.wait()
        (layers / f".layer-envbuild-{host.name()}-{ended.pid}-ab.partial").touch()
        before = {path.name: path.stat().st_ino for path in layers.iterdir() if path.name[0] != "."}
        assert run("export", "x.yaml", "--to", layers)[0] == 0
        assert {path.name: path.stat().st_ino for path in layers.iterdir()} == before

    def test_a_layer_that_may_not_be_read_is_not_the_directory_s_fault(
        self, run: Run, layers: Path, store: Store, planned: LayerRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blob = store.blob_path(planned.blob)

        def refuse(source: Path, _target: Path) -> None:
            raise PermissionError(13, "Permission denied", str(source))

        monkeypatch.setattr(workflow, "copy", refuse)
        code, _, err = run("export", "x.yaml", "--to", layers)
        assert code == 5
        assert "layer a in the store cannot be read: Permission denied" in err
        assert f"see who may read `{blob}`" in err
        assert list(layers.iterdir()) == []

    def test_places_where_layers_do_not_belong(
        self, run: Run, store: Store, planned: LayerRecord, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        for place, told in (
            (tmp_path / "file", "is no directory"),
            (store.root, "lies in the store"),
            (store.root / "blobs/x", "lies in the store"),
            ("", "the directory for the layers is empty"),
        ):
            code, _, err = run("export", "x.yaml", "--to", place)
            assert (code, told in err) == (2, True), err


@pytest.mark.parametrize("content", ["directory", "pipe"])
def test_a_manifest_that_is_no_file_is_told(run: Run, layers: Path, content: str) -> None:
    layers.mkdir()
    path = layers / f"{'a' * 64}.json"
    path.mkdir() if content == "directory" else os.mkfifo(path)
    code, _, err = run("import", layers)
    assert code == 2
    assert "see that it is a file that you may read" in err
