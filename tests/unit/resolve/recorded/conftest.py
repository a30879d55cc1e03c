"""The desk of tests in which uv and apt are recordings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.recordings import Mode, Recordings, temporary_names
from tests.support.resolve_desk import Desk, open_desk, write_torch


@pytest.fixture(scope="module")
def recordings(request: pytest.FixtureRequest) -> Iterator[Recordings]:
    mode: Mode = request.config.getoption("--programs")
    module = request.path
    recordings = Recordings.read(module.parent / "runs" / f"{module.stem}.json", mode)
    yield recordings
    if mode == "update":
        functions = {*vars(request.module)}
        recordings.tests = {
            test: runs for test, runs in recordings.tests.items() if test.partition("[")[0] in functions
        }
        recordings.write()


@pytest.fixture
def desk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recordings: Recordings,
    request: pytest.FixtureRequest,
) -> Iterator[Desk]:
    with open_desk(tmp_path, monkeypatch) as desk:
        names = temporary_names(tmp_path, int(desk.server.address.rpartition(":")[2]))
        with recordings.programs(request.node.name, names, monkeypatch):
            yield desk


@pytest.fixture
def torch(desk: Desk) -> Path:
    return write_torch(desk)
