"""Ranks of a real image, recorded: an uneven script, one with too many threads, one that is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk

UNEVEN = """
import os, time
rank = int(os.environ["PMI_RANK"])
end = time.monotonic() + 5
while time.monotonic() < end:
    sum(range(10_000)) if rank == 0 else time.sleep(0.05)
"""
THREADS = """
import hashlib, threading, time
end = time.monotonic() + 5
def work():
    while time.monotonic() < end:
        hashlib.sha256(bytes(1 << 20))  # without Python's lock
threads = [threading.Thread(target=work) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
KILLED = """
import os, signal, time
rank = int(os.environ["PMI_RANK"])
time.sleep(4)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.fixture
def launch(desk: Desk, small_image: Path, tmp_path: Path) -> Any:
    """Launch a script on two recorded ranks; return what `observe` prints as JSON."""

    def launch(script: str, *, code: int | None = 0) -> dict[str, Any]:
        (tmp_path / "script.py").write_text(script)
        records = tmp_path / "records"
        words: list[str | Path] = ["launch", small_image, "-n", "2", "--observe", records, "--", "python3"]
        desk.envbuild(*words, tmp_path / "script.py", code=code)
        found: dict[str, Any] = json.loads(desk.envbuild("observe", records, "--json").stdout)
        return found

    return launch


def states(found: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["state"] for finding in found["findings"]}


def test_an_uneven_script_is_named(launch: Any, tmp_path: Path, desk: Desk, small_image: Path) -> None:
    found = launch(UNEVEN)
    assert states(found)["ranks.balance"] == "found"
    first, second = found["ranks"]
    assert first["busy"] > 3 * second["busy"]
    assert first["start_s"] > 0
    assert found["images"][0].startswith("sha256:")
    assert found["unread"] == {}
    # A directory is that of one run, and the page and the metrics are written of the same records.
    again = desk.envbuild("launch", small_image, "--observe", tmp_path / "records", "--", "true", code=2)
    assert "has records of another run" in again.stderr
    page, metrics = tmp_path / "page.html", tmp_path / "metrics.txt"
    desk.envbuild("observe", tmp_path / "records", "--report", page, "--openmetrics", metrics)
    assert "ranks.balance" in page.read_text()
    assert 'envbuild_rank_cpu_total{rank="1",host="' in metrics.read_text()
    assert metrics.read_text().endswith("# EOF\n")


@pytest.mark.slow  # unit/observe has the findings
def test_too_many_threads_are_named(launch: Any) -> None:
    found = launch(THREADS)
    assert states(found)["cpu.threads"] == "found"
    assert all(rank["threads"] >= 6 for rank in found["ranks"])


@pytest.mark.slow  # unit/jobs/test_observe kills ranks
def test_a_killed_job_has_its_records(launch: Any) -> None:
    found = launch(KILLED, code=None)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all(3 < rank["seconds"] < 40 for rank in found["ranks"])
    assert "ranks.recorded" not in states(found)


def test_a_directory_without_records_is_an_error(desk: Desk, tmp_path: Path) -> None:
    done = desk.envbuild("observe", tmp_path, code=2)
    assert "has no records of ranks" in done.stderr
