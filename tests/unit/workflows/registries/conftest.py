"""A registry in memory, a store, and a small image to push."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.store.store import Store
from envbuild.workflows.settings import Settings
from envbuild.workflows.sign import make_key
from tests.support.registry import Registry, serving
from tests.support.small_images import BASE, small_image

NOISE = random.Random(7).randbytes(300_000)  # noqa: S311  # the same each time
PACKAGE = {"/opt/env/big": NOISE}


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Serve a registry to a user without logins, whose default store is that of `settings`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    with serving() as registry:
        yield registry


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=Store(tmp_path / "store"))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return small_image(tmp_path, BASE, PACKAGE, name="one.sif")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "centre.key").private
