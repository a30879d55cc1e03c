"""An image whose lock has changed since it was built says so."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.events import Event, Warned
from envbuild.image.file import ImageFile
from envbuild.image.sif import LOCK
from envbuild.lock.text import dump, load
from envbuild.workflows.older import warn_if_older
from tests.support.images import read_data
from tests.support.resolved_specs import wheel
from tests.support.small_images import UNREAD, small_image


def said(image: Path) -> list[str]:
    events: list[Event] = []
    with ImageFile.open(image) as opened:
        warn_if_older(opened, events.append)
    return [f"{event.text} ({event.hint})" for event in events if isinstance(event, Warned)]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = small_image(tmp_path, UNREAD, name="demo.sif")
    (tmp_path / "demo.lock.yaml").write_bytes(read_data(path, LOCK))
    os.utime(path, (1, 1))
    return path


def test_another_lock_that_is_newer_is_said(image: Path) -> None:
    lock_file = image.with_name("demo.lock.yaml")
    assert said(image) == []
    lock = load(lock_file.read_bytes(), lock_file)
    lock_file.write_text(dump(replace(lock, python=(*lock.python, wheel("tabulate")))))
    (line,) = said(image)
    assert line.startswith("`demo.sif` is older than its lock `demo.lock.yaml` (`envbuild build ")
    # As an update does, whose images have a new version.
    lock_file.write_text(dump(replace(lock, version="2")))
    assert len(said(image)) == 1
    # A checkout gives an old lock a new time, and an image that was copied is new.
    os.utime(lock_file, (0, 0))
    assert said(image) == []


def test_a_lock_of_something_else_or_a_damaged_one_says_nothing(image: Path) -> None:
    lock_file = image.with_name("demo.lock.yaml")
    lock = load(lock_file.read_bytes(), lock_file)
    lock_file.write_text(dump(replace(lock, name="other", python=())))
    assert said(image) == []
    lock_file.write_text("nonsense: [")
    assert said(image) == []
    lock_file.unlink()
    assert said(image) == []
