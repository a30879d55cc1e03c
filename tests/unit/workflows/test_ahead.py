"""While a lock is renewed, the last layers are read; while layers are built, the others are copied."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.check.preflight import run as looking
from envbuild.image.half import Half
from envbuild.plan.model import BuildPlan, FilesStep, Layer, TextEntry, layer_key
from envbuild.store import store as stores
from envbuild.store.plans import plan_path
from envbuild.store.store import Store
from envbuild.system import noted
from envbuild.system.files import sha256
from envbuild.system.threads import meanwhile
from envbuild.workflows.ahead import copying_ahead, looking_ahead, reading_ahead
from envbuild.workflows.settings import Settings
from tests.support.asking import asked
from tests.support.stores import damage, publish


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A store in which the last plan was composed of base and a; b was an input."""
    settings = Settings.of(store=tmp_path / "store", apptainer=None, recipes=None, site=None)
    rows = [{"name": name, "key": publish(settings.store, name).key} for name in ("base", "a", "b")]
    plan = {"root": "base", "overlays": ["a"], "layers": rows}
    settings.store.write(plan_path(settings.store, asked().spec.name), json.dumps(plan))
    # What has changed just now is not remembered.
    time.sleep(0.1)
    return settings


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is read of the store's blobs, as it is read."""
    read: list[str] = []

    def note(path: Path, over: threading.Event | None = None) -> str:
        read.append(path.read_text())
        return sha256(path, over)

    monkeypatch.setattr(stores, "sha256", note)
    return read


def test_what_the_image_was_composed_of_is_read_and_not_again(settings: Settings, read: list[str]) -> None:
    with reading_ahead(asked(), settings):
        deadline = time.monotonic() + 60
        while len(read) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sorted(read) == ["hsqs a", "hsqs base"]
    for record in settings.store.records():
        assert settings.store.is_intact(record)
    assert sorted(read) == ["hsqs a", "hsqs b", "hsqs base"]


def test_what_changed_just_now_is_read_each_time(
    settings: Settings, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change so soon after a look may leave the times of a file as they were."""
    monkeypatch.setattr(noted, "_SETTLED_NS", 10**15)
    (record,) = (record for record in settings.store.records() if record.name == "a")
    assert settings.store.is_intact(record)
    assert settings.store.is_intact(record)
    assert read == ["hsqs a", "hsqs a"]


def test_what_changes_afterwards_is_read_again(settings: Settings) -> None:
    (record,) = (record for record in settings.store.records() if record.name == "a")
    assert settings.store.is_intact(record)
    damage(settings.store, record.key)
    assert not settings.store.is_intact(record)
    settings.store.blob_path(record.blob).unlink()
    assert not settings.store.is_intact(record)


@pytest.mark.parametrize("text", ["", "[]", '{"root": 1}', '{"root": "base", "overlays": [], "layers": [1]}'])
def test_a_note_that_says_nothing_hinders_nobody(settings: Settings, read: list[str], text: str) -> None:
    plan_path(settings.store, asked().spec.name).write_text(text)
    with reading_ahead(asked(), settings):
        pass
    assert read == []


def test_a_read_that_fails_hinders_nobody(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(path: Path, over: threading.Event) -> str:
        failed.set()
        raise OSError

    monkeypatch.setattr(stores, "sha256", fail)
    with reading_ahead(asked(), settings):
        assert failed.wait(60)


def layer(name: str) -> Layer:
    step = FilesStep(files=(TextEntry(path=f"/opt/{name}", content=""),), tools=())
    return Layer(name=name, key=layer_key(step, ()), step=step)


LAYERS = tuple(map(layer, ("base", "large", "new", "behind")))
PLAN = BuildPlan(
    layers=LAYERS,
    root="base",
    overlays=("large", "new", "behind"),
    members={one.name: (one.name,) for one in LAYERS},
)


class Copies(Half):
    """Notes what is copied, and can refuse."""

    def __init__(self, path: Path, refuses: bool = False, room_bytes: int = 10**9) -> None:
        super().__init__(path, path, -1)
        self.room = room_bytes
        self.seen: list[str] = []
        self.refuses, self.enough = refuses, threading.Event()
        self.saved = 0

    def copy(
        self,
        source: Path,
        size_bytes: int,
        offset: int,
        advanced: Callable[[int], None] = lambda _: None,
        over: threading.Event | None = None,
    ) -> None:
        self.seen.append(source.read_text())
        if self.refuses or self.seen[-1] == "hsqs large":
            self.enough.set()
        if self.refuses:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(self) -> None:
        self.saved += 1

    def room_bytes(self) -> int:
        return self.room


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store that has every layer but the new one."""
    store = Store(tmp_path / "store")
    for one in LAYERS:
        if one.name != "new":
            publish(store, one.name, one.key)
    return store


def test_what_lies_before_the_first_missing_layer_is_copied_meanwhile(store: Store, tmp_path: Path) -> None:
    half = Copies(tmp_path / "image.sif")
    with copying_ahead(half, PLAN, LAYERS[2:3], store):
        assert half.enough.wait(60)
    assert set(half.seen) == {"hsqs base", "hsqs large"}
    assert half.saved >= 1


def test_where_there_is_little_room_nothing_is_copied_ahead(store: Store, tmp_path: Path) -> None:
    half = Copies(tmp_path / "image.sif", room_bytes=4 * len("hsqs base" + "hsqs large") - 1)
    with copying_ahead(half, PLAN, LAYERS[2:3], store):
        assert not half.enough.wait(0.3)
    assert half.seen == []


def test_what_is_built_anew_is_not_copied_ahead(store: Store, tmp_path: Path) -> None:
    half = Copies(tmp_path / "image.sif")
    with copying_ahead(half, PLAN, LAYERS, store):
        pass
    assert half.seen == []


def test_a_copy_that_fails_is_left_to_who_writes_the_image(store: Store, tmp_path: Path) -> None:
    half = Copies(tmp_path / "image.sif", refuses=True)
    with copying_ahead(half, PLAN, LAYERS[2:3], store):
        assert half.enough.wait(60)
    assert "hsqs large" not in half.seen


def test_what_is_known_of_the_layers_that_are_there_is_read_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(store: Store, digest: str) -> str | None:
        content = store.blob_path(digest).read_text()
        if content == "hsqs behind":
            enough.set()
        return None if content == "hsqs large" else f"what is known of {content}"

    enough = threading.Event()
    monkeypatch.setattr(looking, "kept_scan", kept)
    scans: dict[str, Any] = {}
    with looking_ahead(scans, PLAN, LAYERS[2:3], store):
        assert enough.wait(60)
    there = {store.blob_path(digest).read_text(): scan for digest, scan in scans.items()}
    assert there == {
        "hsqs base": "what is known of hsqs base",
        "hsqs behind": "what is known of hsqs behind",
    }


def test_a_mistake_in_what_is_done_ahead_is_none_that_nobody_sees() -> None:
    def work(over: threading.Event) -> None:
        over.wait(60)
        raise TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"), meanwhile(work):
        pass
