"""Verify reads every byte of a store, and removes what is damaged where asked."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.store.gc_roots import Root, add_root, root_files
from envbuild.store.store import Store
from envbuild.store.verify import remove_damaged, verify
from envbuild.system.sealing import sealed
from tests.support.stores import flip, key, layer, locked_file


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_sound_store(store: Store) -> None:
    layer(store, "a")
    locked_file(store, b"file")
    add_root(store, Root(path="/x.sif", digest=key("9")))
    verified = verify(store)
    assert (verified.layers, verified.blobs, verified.files, verified.damages) == (1, 1, 1, ())
    assert verified.size_bytes == len(b"bytes of a") + 4


def test_an_empty_one_stays_unmade(store: Store) -> None:
    assert verify(store).damages == ()
    assert not store.path.exists()


def test_a_flipped_bit(store: Store) -> None:
    record = layer(store, "a")
    flip(store.blob_path(record.blob))
    (damage,) = verify(store).damages
    assert (damage.kind, damage.id, damage.keys) == ("blob", record.blob, (record.key,))
    assert damage.problem.startswith("its 10 bytes have the digest ")


def test_a_missing_blob(store: Store) -> None:
    record = layer(store, "a")
    store.blob_path(record.blob).unlink()
    (damage,) = verify(store).damages
    assert (damage.kind, damage.id) == ("record", record.key)
    assert "is missing" in damage.problem


def test_swapped_names(store: Store) -> None:
    paths = [store.blob_path(layer(store, letter).blob) for letter in "ab"]
    first, second = (path.read_bytes() for path in paths)
    for path, content in zip(paths, (second, first), strict=True):
        path.chmod(0o644)
        path.write_bytes(content)
    assert [damage.kind for damage in verify(store).damages] == ["blob", "blob"]


def test_a_record_under_anothers_name(store: Store) -> None:
    first, second = layer(store, "a"), layer(store, "b")
    store.record_path(first.key).write_bytes(store.record_path(second.key).read_bytes())
    (damage,) = verify(store).damages
    assert (damage.kind, damage.id) == ("record", first.key)
    assert "the record of another layer" in damage.problem


@pytest.mark.parametrize("text", ["", "{}", "[", sealed("{}"), sealed('{"format":2}')], ids=str)
def test_a_record_that_is_none(store: Store, text: str) -> None:
    record = layer(store, "a")
    store.record_path(record.key).write_text(text)
    (damage,) = verify(store).damages
    assert (damage.kind, damage.id) == ("record", record.key)


def test_a_flipped_bit_in_a_locked_file(store: Store) -> None:
    path = locked_file(store, b"content")
    flip(path)
    (damage,) = verify(store).damages
    assert (damage.kind, damage.id, damage.path.name) == ("file", path.parent.name, path.name)


def test_the_same_bytes_may_be_locked_under_two_names(store: Store) -> None:
    other = locked_file(store, b"content").with_name("zz")
    other.write_bytes(b"content")
    assert verify(store).damages == ()
    other.write_bytes(b"contents")
    (damage,) = verify(store).damages
    assert (damage.kind, damage.path.name) == ("file", "zz")


def test_unknown_files_and_damaged_roots_stay(store: Store) -> None:
    record = layer(store, "a")
    (store.blob_path(record.blob).parent / "notes").write_text("x")
    (store.record_path(record.key).parent / "notes.json").write_text("x")
    add_root(store, Root(path="/x.sif", digest=key("9")))
    (root,) = root_files(store)
    root.write_text("x")
    damages = verify(store).damages
    assert sorted(damage.kind for damage in damages) == ["root", "unknown", "unknown"]
    remove_damaged(store, damages)
    assert verify(store).damages == damages


@pytest.mark.parametrize(
    "place",
    [
        f"files/sha256/ab/{'ab' + '0' * 62}",
        "files/sha256/ab",
        "files/sha256/notes",
        "blobs/sha256/notes",
        "layers/notes",
    ],
)
@pytest.mark.parametrize("kind", ["file", "link"])
def test_strange_entries_anywhere_are_unknown_and_stay(store: Store, place: str, kind: str) -> None:
    layer(store, "a")
    locked_file(store, b"file")
    path = store.path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to("/etc")
    else:
        path.write_text("x")
    damages = verify(store).damages
    assert [(damage.kind, damage.path.name) for damage in damages] == [("unknown", path.name)]
    remove_damaged(store, damages)
    assert verify(store).damages == damages


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "directory"])
def test_what_is_no_file_is_reported_and_nothing_waits_for_it(
    store: Store, make: Callable[[Path], None]
) -> None:
    record, other = layer(store, "a"), layer(store, "b")
    root = store.directory("roots") / "aaaa.json"
    file = locked_file(store, b"file")
    paths = [store.blob_path(record.blob), store.record_path(other.key), file, root]
    for path in paths:
        path.unlink(missing_ok=True)
        make(path)
    damages = {damage.path.name: damage.kind for damage in verify(store).damages}
    assert [damages[path.name] for path in paths] == ["blob", "record", "file", "root"]


@pytest.mark.parametrize("place", ["layers/aa", "roots"])
@pytest.mark.parametrize("what", ["endless", "enormous"])
def test_what_is_read_is_limited(store: Store, place: str, what: str) -> None:
    path = store.directory(place) / f"{'a' * 64}.json"
    if what == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 36)
    assert [damage.path for damage in verify(store).damages] == [path]
    assert store.get(key("a")) is None


@pytest.mark.parametrize("target", ["loop", "elsewhere", "nowhere"])
def test_links_in_place_of_what_is_stored(store: Store, tmp_path: Path, target: str) -> None:
    paths = [store.blob_path(layer(store, "a").blob), locked_file(store, b"file")]
    for path in paths:
        place = path if target == "loop" else tmp_path / f"{target}-{path.name}"
        if target == "elsewhere":
            place.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(place)
    damages = verify(store).damages
    assert sorted(damage.kind for damage in damages) == ["blob", "file"]
    assert all(damage.problem.startswith("it is a link to ") for damage in damages)
    remove_damaged(store, damages)
    assert verify(store).damages == ()
    assert len(list(tmp_path.glob("elsewhere-*"))) == (2 if target == "elsewhere" else 0)


@pytest.mark.parametrize("spoil", ["flip", "truncate", "unlink", "record", "misplaced"])
def test_what_was_removed_is_made_again(store: Store, spoil: str) -> None:
    record = layer(store, "a")
    blob, path = store.blob_path(record.blob), store.record_path(record.key)
    if spoil == "flip":
        flip(blob)
    elif spoil == "truncate":
        blob.chmod(stat.S_IWUSR | stat.S_IRUSR)
        os.truncate(blob, 3)
    elif spoil == "unlink":
        blob.unlink()
    elif spoil == "record":
        path.write_text("{}")
    else:
        path.write_bytes(store.record_path(layer(store, "b").key).read_bytes())
    damages = verify(store).damages
    assert damages
    remove_damaged(store, damages)
    assert verify(store).damages == ()
    assert store.get(record.key) is None, "it is missing now, and built again"
    assert layer(store, "a") == record


@pytest.mark.parametrize("area", ["blobs", "blobs/sha256", "layers", "files/sha256"])
def test_what_cannot_be_listed_is_no_whole_store(
    store: Store, monkeypatch: pytest.MonkeyPatch, area: str
) -> None:
    layer(store, "a")
    locked_file(store, b"content")
    closed, listing = next((store.root / area).iterdir()), Path.iterdir

    def iterdir(path: Path) -> object:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(PermissionError):
        verify(store)
