"""Stores of others, whose layers are used where they are. `tests/redteam` has them belong to other users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import MachineError, RequestError
from envbuild.store.directory_upstream import DirectoryUpstream
from envbuild.store.records import read_record
from envbuild.store.store import Store
from envbuild.system.descriptors import with_real_paths
from envbuild.system.sealing import sealed
from tests.support.stores import key, layer


@pytest.fixture
def theirs(tmp_path: Path) -> Store:
    store = Store(tmp_path / "theirs")
    layer(store, "a")
    return store


def ours(theirs: Store) -> Store:
    return Store(theirs.path.with_name("ours"), [DirectoryUpstream(theirs.path, [os.geteuid()])])


def refusal(path: Path, owner: int | None = None) -> str:
    with pytest.raises((RequestError, MachineError)) as caught:
        DirectoryUpstream(path, [os.geteuid() if owner is None else owner])
    return caught.value.problem


def test_a_layer_is_used_where_it_is(theirs: Store) -> None:
    store = ours(theirs)
    record = store.get(key("a"))
    assert record is not None
    assert record == theirs.get(key("a"))
    blob = store.blob_of(record)
    assert blob.read_bytes() == b"bytes of a"
    assert with_real_paths(str(blob)) == with_real_paths(str(theirs.blob_path(record.blob)))
    assert store.get_local(key("a")) is None
    assert not store.path.exists(), "nothing was written"


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_a_record_of_hostile_json_is_damaged(theirs: Store, value: str) -> None:
    path = theirs.record_path(key("a"))
    path.write_text(sealed(f'{{"format": {value}'))
    with pytest.raises(ValueError, match=r"nested too deep|integer string"):
        read_record(path)


def test_a_layer_of_the_store_itself_comes_first(theirs: Store) -> None:
    store = ours(theirs)
    record = layer(store, "a", b"built here")
    assert store.get(key("a")) == record
    assert store.blob_of(record).read_bytes() == b"built here"


def test_what_was_found_stays_readable_when_its_owner_prunes(theirs: Store, tmp_path: Path) -> None:
    store = ours(theirs)
    record = store.get(key("a"))
    assert record is not None
    theirs.record_path(record.key).unlink()
    theirs.blob_path(record.blob).unlink()
    assert store.get(key("a")) == record
    assert store.blob_of(record).read_bytes() == b"bytes of a"
    copied = store.blob_for_programs(record, tmp_path)
    assert (with_real_paths(str(copied)), copied.read_bytes()) == (str(copied), b"bytes of a")
    assert ours(theirs).get(key("a")) is None


def test_half_a_layer_is_none(theirs: Store) -> None:
    record = theirs.get(key("a"))
    assert record is not None
    blob = theirs.blob_path(record.blob)
    blob.chmod(0o644)
    blob.write_bytes(b"cut")
    assert ours(theirs).get(key("a")) is None
    blob.unlink()
    assert ours(theirs).get(key("a")) is None
    os.mkfifo(blob)
    assert ours(theirs).get(key("a")) is None


@pytest.mark.parametrize("place", ["layers", "layers/aa", "blobs", "blobs/sha256", "record", "blob"])
def test_what_others_can_write_to_does_not_count(theirs: Store, place: str) -> None:
    record = theirs.get(key("a"))
    assert record is not None
    files = {"record": theirs.record_path(record.key), "blob": theirs.blob_path(record.blob)}
    path = files.get(place, theirs.path / place)
    path.chmod(path.stat().st_mode | 0o020)
    assert ours(theirs).get(key("a")) is None


def test_links_are_not_followed(theirs: Store, tmp_path: Path) -> None:
    record = theirs.get(key("a"))
    assert record is not None
    blob = theirs.blob_path(record.blob)
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    assert ours(theirs).get(key("a")) is None
    (tmp_path / "link").symlink_to(theirs.path)
    assert "is a link" in refusal(tmp_path / "link")


def test_who_must_own_it(theirs: Store) -> None:
    assert "belongs to" in refusal(theirs.path, owner=12_345)


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_others_may_neither_write_to_it_nor_replace_it(public: Path, mode: int) -> None:
    theirs = Store(public / "theirs")
    layer(theirs, "a")
    theirs.path.chmod(mode)
    assert f"they can write to `{theirs.path}`" in refusal(theirs.path)
    theirs.path.chmod(0o755)
    public.chmod(mode)
    assert f"they can write to `{public}`" in refusal(theirs.path)
    public.chmod(mode | 0o1000)
    DirectoryUpstream(theirs.path, [os.geteuid()])


def test_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    assert "is not a store" in refusal(tmp_path / "project")
    assert f"there is no store `{tmp_path}/nowhere`" in refusal(tmp_path / "nowhere")
