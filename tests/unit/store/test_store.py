"""Blobs and records: a reader sees a finished layer or none, whatever happened to the writer."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from envbuild.errors import BuildError, MachineError, RequestError
from envbuild.store.opening import MARKER
from envbuild.store.records import RECORD_FORMAT, LayerRecord
from envbuild.store.store import Store
from envbuild.system import host, process
from envbuild.system.sealing import sealed
from envbuild.workflows.settings import store_root
from tests.support.stores import aged

KEY = "sha256:" + "a1" * 32
TREE = {"opt": "d 0755", "opt/x": "f 0644 " + "0" * 64}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def publish(store: Store, content: bytes = b"squash", key: str = KEY) -> LayerRecord:
    with store.stage() as stage:
        image = stage / "layer"
        image.write_bytes(content)
        return store.publish(key=key, name="python", squashfs=image, tree=TREE)[0]


def rewrite(path: Path, record: dict[str, object]) -> None:
    """Write a record that says something else, and is whole as a text."""
    path.write_text(sealed(json.dumps({name: value for name, value in record.items() if name != "seal"})))


def files(store: Store) -> list[str]:
    paths = (path for path in store.path.rglob("*") if path.is_file())
    return sorted(
        path.relative_to(store.path).as_posix() for path in paths if path.name not in (MARKER, "lock")
    )


class TestPublish:
    def test_a_directory_in_a_squashfs_place_makes_way(self, store: Store) -> None:
        store.directory("blobs")
        store.blob_path("sha256:" + hashlib.sha256(b"squash").hexdigest()).mkdir(parents=True)
        record = publish(store)
        assert store.blob_path(record.blob).read_bytes() == b"squash"

    def test_what_was_published_is_found(self, store: Store) -> None:
        record = publish(store)
        assert store.get(KEY) == record
        assert record == LayerRecord(
            key=KEY,
            name="python",
            blob="sha256:" + hashlib.sha256(b"squash").hexdigest(),
            size_bytes=6,
            data=record.data,
            tables=record.tables,
            tree=TREE,
            imported=False,
        )
        assert store.blob_path(record.blob).read_bytes() == b"squash"

    def test_its_data_and_its_tables_have_digests_of_their_own(self, store: Store) -> None:
        superblock, data, tables = bytearray(b"s" * 96), b"data" * 1000, b"tables"
        # Where the table of inodes begins: behind the data.
        superblock[64:72] = (96 + len(data)).to_bytes(8, "little")
        publish(store, bytes(superblock) + data + tables)
        found = store.get(KEY)
        assert found is not None
        assert found.data == "sha256:" + hashlib.sha256(data).hexdigest()
        assert found.tables == "sha256:" + hashlib.sha256(bytes(superblock) + tables).hexdigest()

    def test_all_finished_layers_are_listed(self, store: Store) -> None:
        assert list(store.records()) == []
        second = publish(store, b"other", "sha256:" + "b2" * 32)
        first = publish(store)
        assert list(store.records()) == [first, second]
        store.blob_path(first.blob).unlink()
        (store.path / "layers/a1/notes.json").write_text("{}")
        assert list(store.records()) == [second]

    def test_a_blob_is_read_only_and_a_stage_leaves_nothing(self, store: Store) -> None:
        record = publish(store)
        assert stat.S_IMODE(store.blob_path(record.blob).stat().st_mode) == 0o444
        hexes = record.blob.removeprefix("sha256:"), KEY.removeprefix("sha256:")
        assert files(store) == [
            f"blobs/sha256/{hexes[0][:2]}/{hexes[0]}",
            f"layers/{hexes[1][:2]}/{hexes[1]}.json",
        ]
        assert not list((store.path / "stage").iterdir())

    def test_another_store_at_another_place_is_the_same(self, store: Store, tmp_path: Path) -> None:
        record = publish(store)
        store.path.rename(tmp_path / "moved")
        assert Store(tmp_path / "moved").get(KEY) == record

    def test_the_same_key_twice_with_the_same_bytes_is_fine(self, store: Store) -> None:
        publish(store)
        with store.stage() as stage:
            (stage / "x").write_bytes(b"squash")
            _, other = store.publish(key=KEY, name="python", squashfs=stage / "x", tree=TREE)
        assert other is None

    def test_the_same_key_with_other_bytes_is_a_broken_promise(self, store: Store) -> None:
        first = publish(store)
        with store.stage() as stage:
            (stage / "x").write_bytes(b"other")
            record, other = store.publish(key=KEY, name="python", squashfs=stage / "x", tree=TREE)
        assert other == first.blob
        assert store.get(KEY) == record
        assert store.blob_path(first.blob).exists(), "an image that is composed just now still finds it"

    def test_many_at_once_under_one_key(self, store: Store) -> None:
        together = Barrier(8)

        def one(number: int) -> LayerRecord:
            together.wait()
            return publish(store, content=b"same bytes")

        with ThreadPoolExecutor(8) as pool:
            records = set(map(repr, pool.map(one, range(8))))
        assert records == {repr(store.get(KEY))}
        assert len(files(store)) == 2


class TestGet:
    def test_a_record_with_one_changed_digit_is_no_layer(self, store: Store) -> None:
        """What it says of a tree is what later layers are reduced by."""
        publish(store)
        (path,) = (store.path / "layers").glob("*/*.json")
        text = path.read_text()
        for old, new in (("0644", "0645"), ("python", "pythoo")):
            assert old in text
            path.write_text(text.replace(old, new))
            assert store.get(KEY) is None
        path.write_text(text)
        assert store.get(KEY) is not None

    def test_an_unknown_key(self, store: Store) -> None:
        assert store.get(KEY) is None
        assert not store.path.exists(), "looking changes nothing"

    @pytest.mark.parametrize("content", [b"", b"squas", b"squashfs"])
    def test_a_blob_of_another_length_is_no_layer(self, store: Store, content: bytes) -> None:
        path = store.blob_path(publish(store).blob)
        path.chmod(0o644)
        path.write_bytes(content)
        assert store.get(KEY) is None

    def test_a_missing_blob_is_no_layer_and_is_built_again(self, store: Store) -> None:
        record = publish(store)
        store.blob_path(record.blob).unlink()
        assert store.get(KEY) is None
        assert publish(store) == record == store.get(KEY)

    @pytest.mark.parametrize(
        "change",
        [
            {"format": RECORD_FORMAT - 1},
            {"format": RECORD_FORMAT + 1},
            {"key": "sha256:" + "b2" * 32},
            {"key": 5},
            {"name": None},
            {"blob": "sha256:../../../etc/passwd"},
            {"blob": "md5:" + "0" * 64},
            {"blob": 5},
            {"blob": None},
            {"size_bytes": -1},
            {"size_bytes": 6.0},
            {"size_bytes": "6"},
            {"size_bytes": True},
            {"data": None},
            {"tables": 5},
            {"tree": []},
            {"tree": "opt"},
            {"tree": {"opt": 5}},
        ],
        ids=str,
    )
    def test_a_hostile_record_is_no_layer(self, store: Store, change: dict[str, object]) -> None:
        publish(store)
        path = store.record_path(KEY)
        rewrite(path, {**json.loads(path.read_text()), **change})
        assert store.get(KEY) is None

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "5", "{}", "null", "[" * 100_000, "\udcff"], ids=lambda text: text[:3]
    )
    def test_a_record_that_is_none(self, store: Store, text: str) -> None:
        publish(store)
        store.record_path(KEY).write_text(text, errors="surrogateescape")
        assert store.get(KEY) is None

    def test_every_missing_field_is_noticed(self, store: Store) -> None:
        publish(store)
        path = store.record_path(KEY)
        whole = json.loads(path.read_text())
        for name in whole:
            rewrite(path, {key: value for key, value in whole.items() if key != name})
            assert (Store(store.path).get(KEY) is None) == (name != "seal"), name
        rewrite(path, whole)
        assert Store(store.path).get(KEY) is not None


class TestDigests:
    @pytest.mark.parametrize(
        "digest",
        [
            "",
            "sha256:",
            "a1" * 32,
            "sha512:" + "a1" * 32,
            "sha256:" + "A1" * 32,
            "sha256:" + "a1" * 31,
            "sha256:" + "a1" * 33,
            "sha256:" + "a1" * 31 + "g0",
            "sha256:" + "a1" * 31 + "a\n",
            "sha256:" + "\u0661" * 64,
            "sha256:../" + "a1" * 30 + "a",
            "sha256:/" + "a" * 63,
        ],
    )
    def test_what_is_none_reaches_no_path(self, store: Store, digest: str) -> None:
        with pytest.raises(RequestError, match="is not a sha256 digest"):
            store.blob_path(digest)
        assert store.get(digest) is None

    def test_a_blob_lies_below_the_store(self, store: Store) -> None:
        store.directory("blobs")
        assert store.blob_path(KEY) == store.root / "blobs" / "sha256" / "a1" / ("a1" * 32)


class TestStage:
    def test_it_is_private_whatever_the_umask(self, store: Store) -> None:
        before = os.umask(0)
        try:
            with store.stage() as stage:
                assert stat.S_IMODE(stage.stat().st_mode) == 0o700
        finally:
            os.umask(before)

    def test_a_shared_stores_group_is_not_inherited(self, store: Store) -> None:
        store.directory("stage").chmod(0o2775)
        with store.stage() as stage:
            assert stat.S_IMODE(stage.stat().st_mode) == 0o700

    @pytest.mark.parametrize(
        "error",
        [RuntimeError("x"), KeyboardInterrupt(), RequestError("x", hint="mend it")],
        ids=lambda error: type(error).__name__,
    )
    def test_it_is_gone_after_an_error(self, store: Store, error: BaseException) -> None:
        def fail() -> None:
            with store.stage() as stage:
                (stage / "sub").mkdir()
                (stage / "sub" / "file").touch()
                raise error

        with pytest.raises(type(error)):
            fail()
        assert not list((store.path / "stage").iterdir())

    def test_a_failed_step_that_left_nothing_leaves_no_stage(self, store: Store) -> None:
        with pytest.raises(BuildError), store.stage():
            raise BuildError("x", hint="mend it")
        assert not list((store.path / "stage").iterdir())

    def test_a_failed_steps_stage_is_kept_until_the_next_build(self, store: Store) -> None:
        def fail(stage: Path) -> None:
            (stage / "seen").touch()
            raise BuildError("x", hint="mend it")

        with store.in_use():
            with pytest.raises(BuildError), store.stage() as stage:
                fail(stage)
            with Store(store.path).in_use():
                assert stage.exists(), "a build that runs meanwhile leaves it"
        with store.in_use():
            assert not stage.exists()

    def test_the_work_of_another_machine_is_left_for_a_day(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stages = store.directory("stage")
        (stages / "0123456789abcdef-another").mkdir()
        (stages / f"0123456789abcdef-{host.name()}").mkdir()
        with store.in_use():
            assert [path.name for path in stages.iterdir()] == ["0123456789abcdef-another"]
        aged(stages / "0123456789abcdef-another", 2)
        with store.in_use():
            assert list(stages.iterdir()) == []

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_told_as_such(self, store: Store, number: int) -> None:
        with pytest.raises(MachineError, match="no space left in the store") as caught, store.stage():
            raise OSError(number, "x")
        assert caught.value.hint is not None
        assert "it resumes" in caught.value.hint
        assert not list((store.path / "stage").iterdir())

    def test_any_other_error_of_the_system_is_a_bug_and_stays_one(self, store: Store) -> None:
        with pytest.raises(FileNotFoundError), store.stage():
            raise FileNotFoundError(errno.ENOENT, "x")


class TestWrite:
    def test_a_build_that_begins_meanwhile_leaves_what_is_being_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of a test that keeps its verdict while a build begins, and sweeps."""
        store = Store(tmp_path / "store")
        fsync = os.fsync

        def begin_a_build(file: int) -> None:
            with Store(store.path).in_use():
                fsync(file)

        monkeypatch.setattr(os, "fsync", begin_a_build)
        store.write("verdicts/x.json", "{}")
        assert (store.path / "verdicts/x.json").read_text() == "{}"

    def test_whole_or_not_at_all(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        store.write("plans/x.json", "before")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "x")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(MachineError, match="no space left"):
            store.write("plans/x.json", "after")
        assert (store.path / "plans/x.json").read_text() == "before"
        assert not list((store.path / "stage").iterdir())

    def test_where_nobody_may_write(self, store: Store) -> None:
        store.directory("plans")
        with pytest.raises(MachineError, match="cannot be written: Is a directory"):
            store.write("plans", "x")


@pytest.mark.parametrize(("free", "what"), [(0, "inodes"), (9, "space")])
def test_what_a_full_file_system_lacks(
    store: Store, monkeypatch: pytest.MonkeyPatch, free: int, what: str
) -> None:
    store.path.mkdir()
    values = [4096, 4096, 100, 50, 50, 100, free, free, 0, 255]
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    error = store.write_error(OSError(errno.ENOSPC, "x"))
    assert f"no {what} left in the store" in str(error)


class TestLocks:
    def test_prune_waits_for_builds_and_builds_for_prune(self, store: Store) -> None:
        order: list[str] = []
        with ThreadPoolExecutor(1) as pool:

            def prune() -> None:
                with Store(store.path).alone(lambda: order.append("waiting")) as has_locks:
                    order.append(f"alone {has_locks}")

            with store.in_use(), Store(store.path).in_use():
                pruning = pool.submit(prune)
                while not order:
                    time.sleep(0.01)
                order.append("built")
            pruning.result()
        assert order == ["waiting", "built", "alone True"]

    def test_a_layer_is_built_by_one_at_a_time(self, store: Store) -> None:
        order: list[str] = []
        with ThreadPoolExecutor(1) as pool:

            def build() -> None:
                with Store(store.path).claim(KEY):
                    order.append("second")

            with store.claim(KEY), store.claim("sha256:" + "b2" * 32):
                building = pool.submit(build)
                time.sleep(0.3)
                order.append("first")
            building.result()
        assert order == ["first", "second"]

    def test_many_who_wait_hold_it_one_after_the_other(self, store: Store) -> None:
        inside: list[int] = []

        def build(number: int) -> None:
            for _ in range(5):
                with Store(store.path).claim(KEY) as exclusive:
                    assert exclusive
                    inside.append(number)
                    time.sleep(0.01)
                    assert inside == [number]
                    inside.clear()

        with ThreadPoolExecutor(4) as pool:
            with store.claim(KEY):
                building = [pool.submit(build, number) for number in range(4)]
                time.sleep(0.2)
            for one in building:
                one.result()

    def test_an_interrupted_wait_leaves_the_layer_to_its_holder(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        order: list[str] = []
        with ThreadPoolExecutor(1) as pool:

            def build() -> None:
                with Store(store.path).claim(KEY):
                    order.append("third")

            with store.claim(KEY):
                with monkeypatch.context() as changed:
                    changed.setattr(process, "pause", interrupt)
                    with pytest.raises(KeyboardInterrupt), Store(store.path).claim(KEY):
                        order.append("second")
                building = pool.submit(build)
                time.sleep(0.3)
                order.append("first")
            building.result()
        assert order == ["first", "third"]

    def test_who_is_killed_holds_nothing(self, store: Store) -> None:
        script = f"""
import time
from pathlib import Path
from envbuild.store.store import Store
with Store(Path({str(store.path)!r})).in_use():
    print("held", flush=True)
    time.sleep(60)
"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            holder.kill()
        waits: list[int] = []
        with store.alone(lambda: waits.append(1)) as has_locks:
            assert has_locks
        assert waits == []

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
    def test_without_locks_work_goes_on(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def refuse(file: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", refuse)
        with store.in_use(), store.claim(KEY), store.alone(lambda: None) as has_locks:
            assert not has_locks

    def test_waiting_ends_when_the_run_does(self, store: Store) -> None:
        with store.in_use(), process.terminating_children_on_exit():
            process.end_all()
            with pytest.raises(KeyboardInterrupt), Store(store.path).alone(lambda: None):
                pass


class TestDefaultRoot:
    def test_variable_then_cache_then_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ENVBUILD_STORE", "/s")
        monkeypatch.setenv("XDG_CACHE_HOME", "/c")
        monkeypatch.setenv("HOME", "/h")
        assert store_root() == Path("/s")
        monkeypatch.setenv("ENVBUILD_STORE", "")
        assert store_root() == Path("/c/envbuild")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert store_root() == Path("/h/.cache/envbuild")
        # As for a user of a number without an account.
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(Path, "home", lambda: Path("~").expanduser())
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
        with pytest.raises(RequestError, match="has no home directory") as caught:
            store_root()
        assert caught.value.hint == "name a store with --store DIR or ENVBUILD_STORE"
