"""What a store holds and for whom: pins, prune and verify, over a store of small blobs."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import RequestError
from envbuild.store import pins as pins_module
from envbuild.store import prune as prune_module
from envbuild.store.inventory import Item, areas, items
from envbuild.store.pins import (
    Held,
    Needs,
    Pin,
    damaged_pins,
    held,
    hold_build,
    needs_of,
    read_pin,
    write_pin,
)
from envbuild.store.plans import last_plan, plan_path
from envbuild.store.prune import Pruned, prune
from envbuild.store.store import Store
from envbuild.store.verify import put_aside, verify
from envbuild.system import clock, host
from envbuild.system.sealing import sealed
from tests.support.stores import DAY_S, aged, flip, key, layer, locked_file

NOBODY = needs_of([])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def run(store: Store, needs: Needs | Callable[[], Needs] = NOBODY, **options: object) -> Pruned:
    wanted = needs if callable(needs) else lambda: needs
    return prune(store, wanted, **{"unused_s": 600.0, **options})  # type: ignore[arg-type]


def kept(store: Store) -> list[str]:
    return [item.name for item in items(store) if item.kind == "layer"]


class TestPins:
    PIN = Pin(kind="image", name="/a/x.sif", under="/a", digest=key("9"), keys=(key("b"), key("a")))

    def test_what_is_written_is_read(self, store: Store) -> None:
        path = write_pin(store, self.PIN)
        assert read_pin(path) == replace(self.PIN, keys=(key("a"), key("b")))

    def test_the_same_need_is_one_record_and_is_written_once(self, store: Store) -> None:
        path = write_pin(store, self.PIN)
        before = path.stat().st_ino
        assert write_pin(store, self.PIN) == path
        assert path.stat().st_ino == before
        assert write_pin(store, replace(self.PIN, keys=())) == path
        assert read_pin(path).keys == ()

    @pytest.mark.parametrize(
        ("there", "state"), [(key("9"), "live"), (key("8"), "gone"), (None, "gone")], ids=str
    )
    def test_an_image_holds_as_long_as_it_is_that_image(
        self, store: Store, tmp_path: Path, there: str | None, state: str
    ) -> None:
        write_pin(store, replace(self.PIN, under=str(tmp_path)))
        assert [each.state for each in held(store, lambda pin: there)] == [state]

    def test_a_file_system_that_is_not_there_is_not_gone(self, store: Store, tmp_path: Path) -> None:
        write_pin(store, replace(self.PIN, under=str(tmp_path / "unmounted")))
        assert [each.state for each in held(store, lambda pin: None)] == ["unreachable"]

    def test_a_link_to_a_file_system_that_is_not_there_is_not_gone(
        self, store: Store, tmp_path: Path
    ) -> None:
        (tmp_path / "scratch").symlink_to(tmp_path / "unmounted")
        write_pin(store, replace(self.PIN, under=str(tmp_path / "scratch")))
        assert [each.state for each in held(store, lambda pin: None)] == ["unreachable"]

    def test_where_we_may_not_look_nothing_is_gone(self, store: Store) -> None:
        def refuse(pin: Pin) -> str | None:
            raise PermissionError(13, "no")

        write_pin(store, self.PIN)
        assert [each.state for each in held(store, refuse)] == ["unreachable"]

    def test_what_was_asked_for_holds_without_its_image(self, store: Store) -> None:
        write_pin(store, replace(self.PIN, asked=True))
        assert [each.state for each in held(store, lambda pin: None)] == ["live"]

    def test_a_build_holds_as_long_as_its_process_lives(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = hold_build(store, keys=[key("a")], files=["f" * 64])
        assert path is not None

        def states() -> list[str]:
            return [each.state for each in held(store, lambda pin: None)]

        assert states() == ["live"]
        monkeypatch.setattr(host, "name", lambda: "another")
        assert states() == ["unreachable"], "its process cannot be seen from here"
        aged(path, 8)
        assert states() == ["gone"]
        monkeypatch.undo()
        monkeypatch.setattr(pins_module, "_started", lambda pid: "1")
        assert states() == ["gone"], "a process of that number is another one"

    def test_a_build_that_proc_hides_is_not_gone(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        path = hold_build(store, keys=[key("a")], files=[])
        assert path is not None
        monkeypatch.setattr(pins_module, "_started", lambda pid: "-")

        def states() -> list[str]:
            return [each.state for each in held(store, lambda pin: None)]

        assert states() == ["unreachable"]
        aged(path, 8)
        assert states() == ["gone"]
        aged(path, 0)
        monkeypatch.setattr(host, "may_run", lambda pid: False)
        assert states() == ["gone"], "there is no such process"

    def test_a_build_makes_young_what_it_uses(self, store: Store) -> None:
        record = layer(store, "a", days=30)
        hold_build(store, keys=[record.key, key("b")], files=[])
        assert clock.epoch_s() - store.record_path(record.key).stat().st_mtime < 60

    def test_who_may_not_write_builds_all_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert hold_build(Store(tmp_path / "file"), keys=[], files=[]) is None

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", '{"format": 2}', '{"format": 1}', "[" * 100_000],
        ids=lambda text: text[:14] or "empty",
    )
    def test_a_damaged_one_is_told_and_no_pin(self, store: Store, text: str) -> None:
        path = write_pin(store, self.PIN)
        path.write_text(text)
        assert held(store, lambda pin: None) == []
        assert damaged_pins(store) == [path]

    @pytest.mark.parametrize(
        "change", [("image", "folder"), (key("a"), "sha256:../x"), ("false", "0"), ("/a/x.sif", "")]
    )
    def test_a_hostile_one_is_damaged(self, store: Store, change: tuple[str, str]) -> None:
        path = write_pin(store, self.PIN)
        text = path.read_text()
        assert change[0] in text
        path.write_text(text.replace(*change).replace('"name": ""', '"name": 5'))
        assert damaged_pins(store) == [path]


class TestPrune:
    def test_what_nobody_needs_goes_with_its_blob(self, store: Store) -> None:
        free, needed = layer(store, "a"), layer(store, "b")
        found = run(store, needs_of([Pin(kind="image", name="x", keys=(needed.key,))]))
        assert [item.name for item in found.removed] == ["a"]
        assert kept(store) == ["b"]
        assert not store.blob_path(free.blob).exists()
        assert store.get(needed.key) == needed
        assert found.freed_bytes == free.size_bytes

    def test_a_blob_that_an_image_is_made_of_stays_without_its_record(self, store: Store) -> None:
        record = layer(store, "a")
        store.record_path(record.key).unlink()
        pin = Pin(kind="image", name="/images/x.sif", blobs=(record.blob,))
        assert run(store, needs_of([pin])).removed == ()
        assert [item.kind for item in run(store).removed] == ["blob"]
        assert not store.blob_path(record.blob).exists()

    def test_a_blob_of_two_layers_goes_with_the_last(self, store: Store) -> None:
        first, second = layer(store, "a", b"same"), layer(store, "b", b"same")
        found = run(store, needs_of([Pin(kind="key", name="b", keys=(second.key,))]))
        assert [item.id for item in found.removed] == [first.key]
        assert found.freed_bytes == 0
        assert store.get(second.key) == second

    def test_both_layers_of_one_blob_free_it_once(self, store: Store) -> None:
        record = layer(store, "a", b"same")
        layer(store, "b", b"same")
        assert run(store).freed_bytes == record.size_bytes
        assert not store.blob_path(record.blob).exists()

    def test_locked_files_go_and_needed_ones_stay(self, store: Store) -> None:
        free, needed = locked_file(store, b"free"), locked_file(store, b"needed")
        run(store, needs_of([Pin(kind="lock", name="x", files=(needed.parent.name,))]))
        assert not free.parent.exists()
        assert needed.exists()

    def test_a_dry_run_tells_the_same_and_changes_nothing(self, store: Store) -> None:
        layer(store, "a")
        locked_file(store, b"x")
        before = areas(store)
        told = run(store, dry_run=True)
        assert areas(store) == before
        done = run(store)
        assert (told.removed, told.freed_bytes) == (done.removed, done.freed_bytes)
        assert len(done.removed) == 2

    def test_what_was_used_lately_stays(self, store: Store) -> None:
        layer(store, "a", days=0)
        layer(store, "b", days=20)
        layer(store, "c", days=40)
        found = run(store, unused_s=30 * DAY_S)
        assert [item.name for item in found.removed] == ["c"]
        assert [item.name for item in found.young] == ["a", "b"]
        assert [item.name for item in run(store).removed] == ["b"]
        assert [item.name for item in run(store, unused_s=0.0).removed] == ["a"]

    def test_the_longest_unused_go_first_until_enough_is_gone(self, store: Store) -> None:
        for letter, days in (("a", 1), ("b", 3), ("c", 2)):
            layer(store, letter, letter.encode() * 100, days=days)
        assert [item.name for item in run(store, keep_bytes=250).removed] == ["b"]
        assert kept(store) == ["a", "c"]
        assert run(store, keep_bytes=250).removed == ()

    def test_a_build_that_begins_meanwhile_keeps_what_it_uses(self, store: Store) -> None:
        first, second = layer(store, "a", days=3), layer(store, "b", days=2)
        calls = 0

        def needs() -> Needs:
            nonlocal calls
            calls += 1
            if calls == 1:  # the build comes right after prune has looked
                write_pin(store, Pin(kind="build", name="b", process="1 1 h", keys=(second.key,)))
                return NOBODY
            return needs_of([read_pin(path) for path in pins_module.pin_files(store)])

        assert [item.id for item in run(store, needs).removed] == [first.key]
        assert store.get(second.key) == second

    def test_a_need_that_is_written_anew_under_its_name_counts(self, store: Store) -> None:
        first, second = layer(store, "a", days=3), layer(store, "b", days=2)
        path = write_pin(store, TestPins.PIN)
        calls = 0

        def needs() -> Needs:
            nonlocal calls
            calls += 1
            if calls == 1:
                path.unlink()
                assert write_pin(store, replace(TestPins.PIN, keys=(second.key,))) == path
                return NOBODY
            return needs_of([read_pin(path) for path in pins_module.pin_files(store)])

        assert [item.id for item in run(store, needs).removed] == [first.key]

    def test_what_was_used_while_prune_looked_stays(self, store: Store) -> None:
        record = layer(store, "a")

        def needs() -> Needs:
            return NOBODY

        found = items(store)
        pins_module.freshen(store, [record.key])
        assert [item.used_s for item in items(store)] != [item.used_s for item in found]
        assert run(store, needs).removed == ()

    def test_a_blob_whose_record_is_not_written_yet_stays(self, store: Store) -> None:
        record = layer(store, "a", days=0)
        store.record_path(record.key).unlink()
        assert run(store, unused_s=0.0).removed == ()
        assert store.blob_path(record.blob).exists()

    def test_the_same_bytes_that_were_published_meanwhile_stay(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = layer(store, "a", b"same")

        def removed(path: Path) -> None:
            path.unlink()
            layer(store, "b", b"same")

        monkeypatch.setattr(prune_module, "remove", removed)
        assert [item.id for item in run(store).removed] == [first.key]
        monkeypatch.undo()
        second = store.get(key("b"))
        assert second is not None
        assert store.is_intact(second)

    def test_two_at_once_do_not_mind_each_other(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = layer(store, "a"), layer(store, "b")

        def listed(where: Store) -> list[Item]:
            found = items(where)
            store.record_path(first.key).unlink()  # as the other one does, after we looked
            return found

        monkeypatch.setattr(prune_module, "items", listed)
        assert [item.id for item in run(store).removed] == [second.key]

    def test_scans_of_blobs_that_are_gone_go(self, store: Store) -> None:
        free, needed = layer(store, "a"), layer(store, "b")
        for record in (free, needed):
            path = store.root / "scans/7-x" / record.blob[7:9] / f"{record.blob[7:]}.json"
            path.parent.mkdir(parents=True)
            path.write_text("{}")
            aged(path, 1)
        run(store, needs_of([Pin(kind="image", name="x", keys=(needed.key,))]))
        assert [path.stem for path in (store.root / "scans").rglob("*.json")] == [needed.blob[7:]]

    def test_logs_stay_for_a_week_and_leftovers_for_a_day(self, store: Store) -> None:
        new, old = "1" * 16 + "-wheel.log", "old-timings.json"
        left = {f"logs/{new}": 6.0, f"logs/{old}": 8.0, "files/.unverified-1": 2.0}
        for name, days in left.items():
            path = store.directory(Path(name).parent.as_posix()) / Path(name).name
            path.write_text("x")
            aged(path, days)
        assert [item.name for item in run(store).removed] == [old, ".unverified-1"]

    def test_what_no_store_has_written_is_nobodys_to_take(self, store: Store) -> None:
        """A directory of somebody's may have areas of such names, and be taken for a store."""
        names = [
            "logs/train.log",
            "scans/mri.dat",
            "quarantine/cells.csv",
            "logs/x/y.log",
        ]
        for name in names:
            path = store.directory(Path(name).parent.as_posix()) / Path(name).name
            path.write_text("x")
            aged(path, 100)
        assert run(store).removed == ()
        assert all((store.root / name).exists() for name in names)

    def test_an_error_of_the_pins_removes_nothing(self, store: Store) -> None:
        layer(store, "a")

        def needs() -> Needs:
            raise RequestError("nobody knows", hint="mend it")

        with pytest.raises(RequestError, match="nobody knows"):
            run(store, needs)
        assert kept(store) == ["a"]


class TestVerify:
    def test_a_sound_store(self, store: Store) -> None:
        layer(store, "a")
        locked_file(store, b"file")
        write_pin(store, TestPins.PIN)
        found = verify(store)
        assert (found.layers, found.blobs, found.files, found.damages) == (1, 1, 1, ())
        assert found.size_bytes == len(b"bytes of a") + 4

    @pytest.mark.parametrize("place", ["scans/5-ab/cd", "verdicts/ab"])
    def test_a_note_of_another_word(self, store: Store, place: str) -> None:
        path = store.directory(place) / "x.json"
        path.write_text(sealed('{"passed": false}') + "\n")
        assert (verify(store).notes, verify(store).damages) == (1, ())
        path.write_text(path.read_text().replace("false", "true"))
        (damage,) = verify(store).damages
        assert (damage.what, damage.path) == ("note", path)
        assert put_aside(store, [damage]) == [path]
        assert verify(store).damages == ()

    def test_a_plan_that_is_none(self, store: Store) -> None:
        path = plan_path(store, "x")
        store.write(path, '{"layers": []}')
        assert (verify(store).notes, verify(store).damages) == (1, ())
        path.write_text("[" * 100_000)
        (damage,) = verify(store).damages
        assert (damage.what, damage.path) == ("note", path)

    @pytest.mark.parametrize("place", ["plans", "scans", "verdicts", "layers/aa", "pins"])
    @pytest.mark.parametrize("what", ["pipe", "endless", "enormous"])
    def test_what_is_no_note_is_told_and_takes_neither_time_nor_memory(
        self, store: Store, place: str, what: str
    ) -> None:
        path = store.directory(place) / f"{'a' * 64}.json"
        if what == "pipe":
            os.mkfifo(path)
        elif what == "endless":
            path.symlink_to("/dev/zero")
        else:
            path.touch()
            os.truncate(path, 1 << 36)
        assert [damage.path for damage in verify(store).damages] == [path]
        assert last_plan(store, "a" * 64) is None
        assert store.get(key("a")) is None

    def test_a_blob_that_is_longer_than_any_is_not_read(self, store: Store) -> None:
        record = layer(store, "a")
        path = store.blob_path(record.blob)
        path.chmod(0o644)
        os.truncate(path, 1 << 36)
        found = verify(store)
        (damage,) = found.damages
        assert damage.problem == f"it has {1 << 36} bytes, more than any layer that is recorded"
        assert found.size_bytes == 0

    def test_a_blob_without_a_record_may_be_of_any_length(self, store: Store) -> None:
        layer(store, "a")
        record = layer(store, "b", b"longer than the other" * 99)
        store.record_path(record.key).unlink()
        assert verify(store).damages == ()

    @pytest.mark.parametrize("target", ["loop", "elsewhere", "nowhere"])
    def test_links_in_place_of_what_is_stored(self, store: Store, tmp_path: Path, target: str) -> None:
        paths = [store.blob_path(layer(store, "a").blob), locked_file(store, b"file")]
        for path in paths:
            place = path if target == "loop" else tmp_path / f"{target}-{path.name}"
            if target == "elsewhere":
                path.rename(place)
            else:
                path.unlink()
            path.symlink_to(place)
        damages = verify(store).damages
        assert {(damage.what, damage.path) for damage in damages} == {("blob", paths[0]), ("file", paths[1])}
        assert all(damage.problem.startswith("it is a link to ") for damage in damages)
        assert set(paths) <= set(put_aside(store, damages))
        assert verify(store).damages == ()

    def test_an_empty_one_stays_unmade(self, store: Store) -> None:
        assert verify(store).damages == ()
        assert not store.root.exists()

    def test_a_flipped_bit(self, store: Store) -> None:
        record = layer(store, "a")
        flip(store.blob_path(record.blob))
        (damage,) = verify(store).damages
        assert (damage.what, damage.id, damage.keys) == ("blob", record.blob, (record.key,))
        assert damage.problem.startswith("its bytes have the digest ")

    def test_what_is_no_store_is_refused(self, tmp_path: Path, store: Store) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "desk/drawer").mkdir(parents=True)
        layer(store, "a")
        for root, told in (
            ("file", "is no directory, and so no store"),
            ("desk", "holds nothing that a store"),
        ):
            with pytest.raises(RequestError, match=told):
                Store(tmp_path / root).check_is_one()
        store.check_is_one()
        Store(tmp_path / "nowhere").check_is_one()
        (tmp_path / "disk/lost+found").mkdir(parents=True)
        Store(tmp_path / "disk").check_is_one()
        (store.root / "files").touch()
        with pytest.raises(RequestError, match=r"`files` in the store .* is no directory"):
            store.check_is_one()

    @pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["pipe", "directory"])
    def test_what_is_no_file_is_told_and_nobody_waits_for_it(
        self, store: Store, make: Callable[[Path], None]
    ) -> None:
        record, other = layer(store, "a"), layer(store, "b")
        pin = store.directory("pins") / "aaaa.json"
        file = locked_file(store, b"file")
        paths = [store.blob_path(record.blob), store.record_path(other.key), file]
        for path in (*paths, pin):
            path.unlink(missing_ok=True)
            make(path)
        found = {damage.path: damage.what for damage in verify(store).damages}
        assert found == {
            paths[0]: "blob",
            paths[1]: "record",
            file: "file",
            pin: "pin",
        }

    def test_a_truncated_blob(self, store: Store) -> None:
        record = layer(store, "a")
        path = store.blob_path(record.blob)
        path.chmod(0o644)
        path.write_bytes(b"byte")
        (damage,) = verify(store).damages
        assert damage.problem == "it has 4 bytes in place of 10"

    def test_a_missing_blob(self, store: Store) -> None:
        record = layer(store, "a")
        store.blob_path(record.blob).unlink()
        (damage,) = verify(store).damages
        assert (damage.what, damage.id) == ("record", record.key)
        assert "is missing" in damage.problem

    def test_swapped_names(self, store: Store) -> None:
        paths = [store.blob_path(layer(store, letter).blob) for letter in "ab"]
        first, second = (path.read_bytes() for path in paths)
        for path, content in zip(paths, (second, first), strict=True):
            path.chmod(0o644)
            path.write_bytes(content)
        damages = verify(store).damages
        assert [damage.what for damage in damages] == ["blob", "blob"]
        assert all("it holds the bytes of another" in damage.problem for damage in damages)

    def test_a_record_under_anothers_name(self, store: Store) -> None:
        first, second = layer(store, "a"), layer(store, "b")
        store.record_path(first.key).write_bytes(store.record_path(second.key).read_bytes())
        (damage,) = verify(store).damages
        assert (damage.what, damage.id) == ("record", first.key)
        assert "the record of another layer" in damage.problem

    @pytest.mark.parametrize("text", ["", "{}", "[", sealed("{}"), sealed('{"format":2}')], ids=str)
    def test_a_record_that_is_none(self, store: Store, text: str) -> None:
        record = layer(store, "a")
        store.record_path(record.key).write_text(text)
        (damage,) = verify(store).damages
        assert (damage.what, damage.id) == ("record", record.key)

    def test_a_flipped_bit_in_a_locked_file(self, store: Store) -> None:
        path = locked_file(store, b"content")
        flip(path)
        (damage,) = verify(store).damages
        assert (damage.what, damage.id, damage.path) == ("file", path.parent.name, path)

    def test_strangers_and_damaged_pins(self, store: Store) -> None:
        record = layer(store, "a")
        (store.blob_path(record.blob).parent / "notes").write_text("x")
        (store.record_path(record.key).parent / "notes.json").write_text("x")
        pin = write_pin(store, TestPins.PIN)
        pin.write_text("x")
        assert sorted(damage.what for damage in verify(store).damages) == ["pin", "stranger", "stranger"]

    @pytest.mark.parametrize("spoil", ["flip", "truncate", "unlink", "record", "misplaced"])
    def test_what_was_put_aside_is_made_anew(self, store: Store, spoil: str) -> None:
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
        moved = put_aside(store, verify(store).damages)
        assert moved
        assert verify(store).damages == ()
        assert store.get(record.key) is None, "it is missing now, and built again"
        assert layer(store, "a") == record
        assert len(list((store.root / "quarantine").iterdir())) == len(moved)

    @pytest.mark.parametrize("spoil", ["flip", "unlink", "record", "file"])
    def test_what_a_build_has_mended_since_stays(self, store: Store, spoil: str) -> None:
        record, file = layer(store, "a"), locked_file(store, b"content")
        blob, path = store.blob_path(record.blob), store.record_path(record.key)
        if spoil == "flip":
            flip(blob)
        elif spoil == "unlink":
            blob.unlink()
        elif spoil == "record":
            path.write_text("{}")
        else:
            flip(file)
        damages = verify(store).damages
        assert damages
        store.discard(record)
        assert layer(store, "a") == record
        shutil.rmtree(file.parent)
        locked_file(store, b"content")
        assert put_aside(store, damages) == []
        assert verify(store).damages == ()

    @pytest.mark.parametrize("area", ["blobs", "blobs/sha256", "layers", "files/sha256", "scans"])
    def test_what_cannot_be_listed_is_told_and_stays(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, area: str
    ) -> None:
        record = layer(store, "a")
        locked_file(store, b"content")
        store.directory("scans/5-ab/cd")
        place = store.root / area
        closed = next(place.iterdir())
        listing, scanning = Path.iterdir, os.scandir

        def refuse(path: str | Path) -> None:
            if Path(path) == closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(closed))

        def iterdir(path: Path) -> Any:
            refuse(path)
            return listing(path)

        def scandir(path: str | Path) -> Any:
            refuse(path)
            return scanning(path)

        monkeypatch.setattr(Path, "iterdir", iterdir)
        monkeypatch.setattr(os, "scandir", scandir)
        (damage,) = verify(store).damages
        assert (damage.what, damage.path) == ("unreadable", closed)
        assert "Permission denied" in damage.problem
        assert store.get(record.key) == record

    def test_the_same_bytes_may_be_locked_under_two_names(self, store: Store) -> None:
        path = locked_file(store, b"content")
        other = path.with_name("zz")
        other.write_bytes(b"content")
        assert verify(store).damages == ()
        other.write_bytes(b"contents")
        (damage,) = verify(store).damages
        assert (damage.what, damage.path) == ("stranger", other)

    def test_needs_name_everybody(self) -> None:
        pins = [Pin(kind="image", name=name, keys=(key("a"),)) for name in ("/b", "/a")]
        assert needs_of(pins).keys == {key("a"): ("image /a", "image /b")}
        assert Held(pin=pins[0], state="live", path=Path()).pin.label == "image /b"
