"""`envbuild layer export|import` of layers of a few bytes: what is taken, reported and kept."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.errors import RequestError
from envbuild.plan.model import BuildPlan, FilesStep, Layer
from envbuild.store import transfer
from envbuild.store.directory_upstream import DirectoryUpstream
from envbuild.store.gc_roots import Root, add_root
from envbuild.store.records import LayerRecord, record_name
from envbuild.store.store import Store
from envbuild.store.verify import verify
from envbuild.system.sealing import sealed
from envbuild.workflows import arguments
from envbuild.workflows import layer as workflow
from envbuild.workflows.settings import Settings
from tests.support.stores import aged, flip, layer

Run = Callable[..., tuple[int, str, str]]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def layers(tmp_path: Path) -> Store:
    """The directory to import from; a store, as `layer export` makes it."""
    return Store(tmp_path / "layers")


@pytest.fixture
def run(store: Store, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["layer", *map(str, words), "--store", str(store.path)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


def rewrite(layers: Store, record: LayerRecord, change: Change) -> None:
    """Change the record of a layer, and seal it again."""
    path = layers.path / record_name(record.key)
    data = json.loads(path.read_text())
    del data["seal"]
    change(data)
    path.chmod(0o644)
    path.write_text(sealed(json.dumps(data, sort_keys=True, separators=(",", ":"))))


def test_layers_are_in_the_store_as_they_were_elsewhere(run: Run, layers: Store, store: Store) -> None:
    first, second = layer(layers, "a"), layer(layers, "b")
    code, out, err = run("import", layers.path)
    assert (code, out) == (0, "")
    assert "2 of 2 layers imported, 0 MB\n" in err
    assert store.get(first.key) == first
    assert store.get(second.key) == second
    assert verify(store).damages == ()
    assert list((store.path / "stage").iterdir()) == []
    # They may not be buildable here.
    with pytest.raises(SystemExit):
        main(["cache", "prune", "--older-than", "0s", "--store", str(store.path)])
    assert len(list(store.records())) == 2


def test_what_is_there_stays(run: Run, layers: Store, store: Store) -> None:
    record = layer(layers, "a")
    run("import", layers.path)
    before = store.blob_path(record.blob).stat().st_ino
    code, _, err = run("import", layers.path)
    assert code == 0
    assert "0 of 1 layers imported, 0 MB" in err
    assert store.blob_path(record.blob).stat().st_ino == before


def test_a_damaged_layer_of_the_store_is_replaced(run: Run, layers: Store, store: Store) -> None:
    record = layer(layers, "a")
    run("import", layers.path)
    flip(store.blob_path(record.blob))
    assert "1 of 1 layers imported" in run("import", layers.path)[2]
    assert store.is_intact(record)


def test_other_bytes_under_one_key_are_reported_and_not_taken(run: Run, layers: Store, store: Store) -> None:
    record = layer(layers, "a")
    run("import", layers.path)
    layer(layers, "a", b"not reproducible")
    code, out, err = run("import", layers.path, "--json")
    assert code == 0
    assert '"text": "layer a: the store holds ' in err
    assert [row["state"] for row in json.loads(out)["layers"]] == ["differs"]
    assert store.get(record.key) == record


def test_all_damage_is_reported_at_once_and_the_rest_imported(run: Run, layers: Store, store: Store) -> None:
    records = {letter: layer(layers, letter) for letter in "abcdef"}
    flip(layers.path / "blobs/sha256" / records["b"].blob[7:9] / records["b"].blob[7:])
    cut = layers.blob_path(records["c"].blob)
    cut.chmod(0o644)
    cut.write_bytes(b"cu")
    layers.blob_path(records["d"].blob).unlink()
    flip(layers.record_path(records["e"].key))
    moved = layers.path / f"layers/00/{'0' * 64}.json"
    moved.parent.mkdir()
    layers.record_path(records["f"].key).rename(moved)
    code, _, err = run("import", layers.path)
    assert code == 2
    assert err.count("error: ") == 5
    for problem in (
        "the squashfs of layer b is damaged",
        "the squashfs of layer c is damaged",
        "the squashfs of layer d is missing",
        f"{'e' * 64}.json",
        f"it is the record of layer f, {records['f'].key[7:19]}",
    ):
        assert problem in err
    assert [record.name for record in store.records()] == ["a"]


def test_a_layer_that_is_listed_and_missing_is_reported(run: Run, layers: Store, store: Store) -> None:
    record = layer(layers, "a")
    add_root(layers, Root(path="/x.lock.yaml", pinned=True, keys=(record.key, "sha256:" + "b" * 64)))
    code, _, err = run("import", layers.path)
    assert code == 2
    assert "layers are missing that it lists: bbbbbbbbbbbb…" in err
    assert store.get(record.key) == record


TREES: tuple[object, ...] = (
    [],
    {"/etc/x": "d 0755"},
    {"../x": "d 0755"},
    {"a/../b": "d 0755"},
    {"a//b": "d 0755"},
    {"a/": "d 0755"},
    {"": "d 0755"},
    {"a": "device"},
    {"a": "f 0644"},
    {"a": "l "},
)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(format=1),
        lambda data: data.pop("blob"),
        lambda data: data.update(blob="sha256:../../etc/passwd"),
        lambda data: data.update(data="sha256:0"),
        lambda data: data.update(size_bytes="10"),
        lambda data: data.update(imported="no"),
        lambda data: data.update(name="a\x1b[2J"),
        *(partial(dict.update, tree=tree) for tree in TREES),
    ],
)
def test_what_is_no_record_is_refused(run: Run, layers: Store, store: Store, change: Change) -> None:
    rewrite(layers, layer(layers, "a"), change)
    code, _, err = run("import", layers.path)
    assert (code, list(store.records())) == (2, [])
    assert "a layer cannot be imported: " in err


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"seal":"sha256:0",' + b"[" * 100_000])
def test_a_file_of_something_else_is_refused(run: Run, layers: Store, content: bytes) -> None:
    path = layers.directory("layers/aa") / f"{'a' * 64}.json"
    path.write_bytes(content)
    code, _, err = run("import", layers.path)
    assert code == 2
    assert "a layer cannot be imported: " in err
    assert str(path.name) in err


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_a_record_that_is_no_file_is_refused(run: Run, layers: Store, kind: str) -> None:
    path = layers.directory("layers/aa") / f"{'a' * 64}.json"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    code, _, err = run("import", layers.path)
    assert code == 2
    assert "a layer cannot be imported: " in err


def test_a_directory_without_layers_is_refused(run: Run, tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        code, _, err = run("import", directory)
        assert code == 2
        assert f"there are no layers in `{directory}`" in err
        assert "`envbuild layer export SPEC --to DIR`" in err


def test_what_a_store_refuses_is_no_damage(run: Run, layers: Store, store: Store) -> None:
    layer(layers, "a")
    layer(layers, "b")
    (store.directory("blobs") / "sha256").write_text("in the way")
    code, out, err = run("import", layers.path, "--json")
    assert code == 5
    assert err.count("error: ") == 1, "it is the same for all"
    assert "cannot be written" in err
    assert json.loads(out)["layers"] == []


def test_bytes_that_are_not_there_do_not_differ(run: Run, layers: Store) -> None:
    record = layer(layers, "a")
    run("import", layers.path)
    rewrite(layers, record, lambda data: data.update(blob=f"sha256:{'0' * 64}"))
    code, _, err = run("import", layers.path)
    assert code == 2
    assert "the squashfs of layer a is missing" in err


def test_what_is_imported_again_is_young_again(run: Run, layers: Store, store: Store) -> None:
    record = layer(layers, "a")
    run("import", layers.path)
    aged(store.record_path(record.key), 3)
    before = store.record_path(record.key).stat().st_mtime
    run("import", layers.path)
    assert store.record_path(record.key).stat().st_mtime > before + 86_400


@pytest.mark.parametrize("place", ["", "layers", "layers/aa", "blobs/sha256", f"layers/aa/{'a' * 64}.json"])
def test_what_others_can_write_to_needs_trust_and_is_marked(
    run: Run, layers: Store, store: Store, place: str
) -> None:
    record = layer(layers, "a")
    path = layers.path / place
    path.chmod(path.stat().st_mode | 0o022)
    code, _, err = run("import", layers.path)
    assert (code, list(store.records())) == (2, [])
    assert "can write to" in err
    assert "--trust" in err
    assert run("import", layers.path, "--trust")[0] == 0
    own = store.get(record.key)
    assert own is not None
    assert own.imported


def test_what_lies_where_others_can_replace_it_needs_trust(run: Run, layers: Store, public: Path) -> None:
    layer(layers, "a")
    project = public / "project"
    project.mkdir()
    shutil.copytree(layers.path, project / "layers")
    project.chmod(0o2770)
    code, _, err = run("import", project / "layers")
    assert code == 2
    assert f"they can write to `{project}`" in err
    assert run("import", project / "layers", "--trust")[0] == 0


@pytest.mark.redteam
def test_the_directory_that_was_checked_is_the_one_that_is_read(
    run: Run, layers: Store, store: Store, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else exchanges it between the check and the reading."""
    layer(layers, "a")
    theirs = Store(public / "theirs")
    layer(theirs, "b")
    public.chmod(0o775)
    link = layers.path.with_name("link")
    link.symlink_to(layers.path)

    def opened(*arguments: Any) -> DirectoryUpstream:
        upstream = DirectoryUpstream(*arguments)
        link.unlink()
        link.symlink_to(theirs.path)
        return upstream

    monkeypatch.setattr(transfer, "DirectoryUpstream", opened)
    run("import", link)
    assert [record.name for record in store.records()] == ["a"]


def test_a_directory_that_is_no_store_becomes_none(run: Run, layers: Store, store: Store) -> None:
    layer(layers, "a")
    store.path.mkdir()
    (store.path / "letter.txt").touch()
    code, _, err = run("import", layers.path)
    assert code == 2
    assert "is not a store" in err
    assert [path.name for path in store.path.iterdir()] == ["letter.txt"]


def test_layers_that_are_not_finished_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = (
        Layer(name=name, key=f"sha256:{name * 64}", step=FilesStep(files=(), tools=())) for name in "ab"
    )
    plan = BuildPlan(layers=tuple(planned), image=("a", "b"), tools=())
    monkeypatch.setattr(workflow, "read_locked", lambda *_: SimpleNamespace(other_tools=()))
    monkeypatch.setattr(workflow, "plan_image", lambda *_, **__: plan)
    settings = Settings(store=Store(tmp_path / "store"))
    with pytest.raises(
        RequestError, match=r"the store lacks finished layers of `spec\.yaml`: a, b"
    ) as refused:
        workflow.export_layers(Path("spec.yaml"), settings, to=tmp_path / "kept")
    assert refused.value.hint == "`envbuild build spec.yaml` makes them"
    assert not (tmp_path / "kept").exists()
    # `build` leaves an image alone that is up to date, whatever the store has.
    (tmp_path / "there.sif").touch()
    spec = tmp_path / "there.yaml"
    with pytest.raises(RequestError) as refused:
        workflow.export_layers(spec, settings, to=tmp_path / "kept")
    assert refused.value.hint == f"`envbuild build {spec} -o NEW.sif` makes them"


class TestExport:
    """One planned layer, copied to a directory."""

    @pytest.fixture
    def planned(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> LayerRecord:
        record = layer(store, "a")
        one = Layer(name="a", key=record.key, step=FilesStep(files=(), tools=()))
        plan = BuildPlan(layers=(one,), image=("a",), tools=())
        monkeypatch.setattr(workflow, "read_locked", lambda *_: SimpleNamespace(other_tools=()))
        monkeypatch.setattr(workflow, "plan_image", lambda *_, **__: plan)
        return record

    def test_the_directory_becomes_a_store_that_prune_leaves_alone(
        self, run: Run, layers: Store, planned: LayerRecord
    ) -> None:
        assert run("export", "x.yaml", "--to", layers.path)[0] == 0
        assert layers.get(planned.key) == planned
        assert verify(layers).damages == ()
        with pytest.raises(SystemExit):
            main(["cache", "prune", "--older-than", "0s", "--store", str(layers.path)])
        assert layers.get(planned.key) == planned

    def test_what_is_there_is_not_written_again(self, run: Run, layers: Store, planned: LayerRecord) -> None:
        for _ in range(2):
            code, _, err = run("export", "x.yaml", "--to", layers.path)
            assert code == 0
        assert "1 layers, 0 MB written" in err

    def test_a_layer_that_cannot_be_read_is_named(
        self, run: Run, layers: Store, planned: LayerRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(source: Path, _target: Path) -> None:
            raise PermissionError(13, "Permission denied", str(source))

        monkeypatch.setattr(transfer, "copy", refuse)
        code, _, err = run("export", "x.yaml", "--to", layers.path)
        assert code == 5
        assert "layer a cannot be read: Permission denied" in err
        assert list(layers.records()) == []

    def test_a_damaged_layer_is_not_exported(
        self, run: Run, layers: Store, store: Store, planned: LayerRecord
    ) -> None:
        flip(store.blob_path(planned.blob))
        code, _, err = run("export", "x.yaml", "--to", layers.path)
        assert code == 2
        assert "layer a in the store is damaged" in err
        assert list(layers.records()) == []

    def test_a_directory_without_inodes_gets_no_layer(
        self, run: Run, layers: Store, planned: LayerRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arguments, "free_inodes", lambda _: 1)
        code, _, err = run("export", "x.yaml", "--to", layers.path)
        assert code == 5
        assert f"there is no space for 2 inodes in `{layers.path}`: 1 inode is free" in err
        assert layers.get(planned.key) is None

    def test_places_where_layers_do_not_belong(
        self, run: Run, store: Store, planned: LayerRecord, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "project/src").mkdir(parents=True)
        for place, problem in (
            (tmp_path / "file", "is not a directory"),
            (tmp_path / "project", "is not a store"),
            (store.path, "is inside the store"),
            (store.path / "blobs/x", "is inside the store"),
            ("", "the name of a directory is empty"),
        ):
            code, _, err = run("export", "x.yaml", "--to", place)
            assert (code, problem in err) == (2, True), err
