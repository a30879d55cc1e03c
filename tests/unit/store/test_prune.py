"""Prune removes what nothing needs, over a store of small blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.store.gc_roots import Needs
from envbuild.store.inventory import areas, items
from envbuild.store.prune import Pruned, prune
from envbuild.store.store import Store
from tests.support.stores import DAY_S, aged, layer, locked_file

NOTHING: Needs = {}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def run(
    store: Store, *, keys: tuple[str, ...] = (), files: tuple[str, ...] = (), **options: object
) -> Pruned:
    needs = dict.fromkeys((*keys, *files), ("image x",))
    return prune(store, needs, **{"unused_s": 600.0, **options})  # type: ignore[arg-type]


def layers(store: Store) -> list[str]:
    return [item.name for item in items(store) if item.kind == "layer"]


def test_what_nothing_needs_goes_with_its_blob(store: Store) -> None:
    free, needed = layer(store, "a"), layer(store, "b")
    pruned = run(store, keys=(needed.key,))
    assert [item.name for item in pruned.removed] == ["a"]
    assert layers(store) == ["b"]
    assert not store.blob_path(free.blob).exists()
    assert store.get(needed.key) == needed
    assert pruned.freed_bytes == free.size_bytes


def test_a_blob_without_a_record_goes(store: Store) -> None:
    record = layer(store, "a")
    store.record_path(record.key).unlink()
    assert [item.kind for item in run(store, keys=(record.key,)).removed] == ["blob"]
    assert not store.blob_path(record.blob).exists()


def test_a_blob_of_two_layers_goes_with_the_last(store: Store) -> None:
    first, second = layer(store, "a", b"same"), layer(store, "b", b"same")
    pruned = run(store, keys=(second.key,))
    assert [item.id for item in pruned.removed] == [first.key]
    assert pruned.freed_bytes == 0
    assert store.get(second.key) == second
    assert run(store).freed_bytes == first.size_bytes
    assert not store.blob_path(first.blob).exists()


def test_locked_files_go_and_needed_ones_stay(store: Store) -> None:
    free, needed = locked_file(store, b"free"), locked_file(store, b"needed")
    run(store, files=(needed.parent.name,))
    assert not free.parent.exists()
    assert needed.exists()


def test_a_dry_run_reports_the_same_and_changes_nothing(store: Store) -> None:
    layer(store, "a")
    locked_file(store, b"x")
    before = areas(store)
    dry = run(store, dry_run=True)
    assert areas(store) == before
    real = run(store)
    assert (dry.removed, dry.freed_bytes) == (real.removed, real.freed_bytes)
    assert len(real.removed) == 2


def test_what_was_used_lately_stays(store: Store) -> None:
    for letter, days in (("a", 0), ("b", 20), ("c", 40)):
        layer(store, letter, days=days)
    pruned = run(store, unused_s=30 * DAY_S)
    assert [item.name for item in pruned.removed] == ["c"]
    assert sorted(item.name for item in pruned.recently_used) == ["a", "b"]
    assert [item.name for item in run(store).removed] == ["b"]
    assert [item.name for item in run(store, unused_s=0.0).removed] == ["a"]


def test_a_build_makes_young_what_it_uses(store: Store) -> None:
    record = layer(store, "a", days=30)
    store.freshen([record.key])
    assert run(store).removed == ()


def test_the_longest_unused_go_first_until_enough_is_gone(store: Store) -> None:
    for letter, days in (("a", 1), ("b", 3), ("c", 2)):
        layer(store, letter, letter.encode() * 100, days=days)
    assert [item.name for item in run(store, keep_bytes=250).removed] == ["b"]
    assert layers(store) == ["a", "c"]
    assert run(store, keep_bytes=250).removed == ()


def test_scans_of_images_that_are_gone_go(store: Store) -> None:
    for digit in "12":
        name = f"scans/7-x/{digit * 2}/{digit * 64}.json"
        store.write(name, "{}")
        aged(store.path / name, 1)
    run(store, keys=(f"sha256:{'1' * 64}",))
    assert [path.stem for path in (store.path / "scans").rglob("*.json")] == ["1" * 64]


def test_logs_stay_for_a_week(store: Store) -> None:
    for name, days in {"logs/new.log": 6.0, "logs/old.log": 8.0, "files/.unverified-1": 2.0}.items():
        path = store.directory(Path(name).parent.as_posix()) / Path(name).name
        path.write_text("x")
        aged(path, days)
    assert [item.name for item in run(store).removed] == ["old.log", ".unverified-1"]


def test_no_link_is_followed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("x.log", "0" * 64):
        (outside / name).write_text("x")
        aged(outside / name, 100)
    for area in ("logs", "blobs/sha256", "scans", "files/sha256/aa"):
        (store.directory(area) / ("0" * 64)).symlink_to(outside)
    run(store, unused_s=0.0)
    assert sorted(path.name for path in outside.iterdir()) == ["0" * 64, "x.log"]


def test_what_cannot_be_removed_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    layer(store, "a")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    pruned = run(store)
    assert pruned.removed == ()
    ((item, why),) = pruned.failed
    assert (item.name, why.endswith("Permission denied")) == ("a", True)


def test_parts_that_a_killed_pull_left_go(store: Store) -> None:
    parts = store.directory("parts")
    for name, days in (("a" * 64, 2.0), (f".{'b' * 64}.partial", 2.0), ("c" * 64, 0.0)):
        (parts / name).write_bytes(b"bytes")
        aged(parts / name, days)
    assert [item.kind for item in run(store).removed] == ["leftover", "leftover"]
    assert [path.name for path in parts.iterdir()] == ["c" * 64]
