"""The desk of tests that run uv and apt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.resolve_desk import Desk, open_desk, write_torch


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with open_desk(tmp_path, monkeypatch) as desk:
        yield desk


@pytest.fixture
def torch(desk: Desk) -> Path:
    return write_torch(desk)
