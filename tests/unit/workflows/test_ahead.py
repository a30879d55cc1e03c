"""While a lock is renewed, what the last build used is read."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from envbuild.store import store as stores
from envbuild.system import noted
from envbuild.system.files import sha256
from envbuild.workflows.ahead import plan_record, reading_ahead
from envbuild.workflows.settings import Settings
from tests.support.asking import asked
from tests.support.stores import flip, publish


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A store in which the last plan was composed of base and a; b was an input."""
    settings = Settings.of(store=tmp_path / "store", apptainer=None, recipes=None, site=None)
    rows = [{"name": name, "key": publish(settings.store, name).key} for name in ("base", "a", "b")]
    plan = {"root": "base", "overlays": ["a"], "layers": rows}
    settings.store.write(plan_record(asked(), settings), json.dumps(plan))
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
        deadline = time.monotonic() + 10
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
    flip(settings.store, record.key)
    assert not settings.store.is_intact(record)
    settings.store.blob_path(record.blob).unlink()
    assert not settings.store.is_intact(record)


@pytest.mark.parametrize("text", ["", "[]", '{"root": 1}', '{"root": "base", "overlays": [], "layers": [1]}'])
def test_a_note_that_says_nothing_hinders_nobody(settings: Settings, read: list[str], text: str) -> None:
    plan_record(asked(), settings).write_text(text)
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
        assert failed.wait(10)
