"""Timings: what people and programs are told of a run's time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.store.store import Store
from envbuild.system import spans
from envbuild.system.spans import Span
from envbuild.workflows.timings import Timings, timed


def test_a_run_is_told_as_a_table_with_what_is_small_in_one_line() -> None:
    taken = Timings(
        seconds=3.0,
        cpu_seconds=2.5,
        spans=(
            Span(name="start", seconds=0.5, cpu_seconds=0.25),
            Span(name="compose", seconds=2.0, cpu_seconds=0.125),
            Span(name="plan", seconds=0.001),
            Span(name="tools", seconds=0.002),
        ),
        path=Path("logs/x-timings.json"),
    )
    assert taken.to_text().splitlines() == [
        "                     wall s    CPU s",
        "start                  0.50     0.25",
        "compose                2.00     0.12",
        "smaller pieces (2)     0.00     0.00",
        "in all                 3.00     2.50",
        "timings: logs/x-timings.json",
    ]


@pytest.mark.parametrize("seconds", [1.2346, 1.2349, 2.6749, 1.0051])
def test_table_and_data_agree_in_the_last_digit(seconds: float) -> None:
    taken = Timings(seconds=seconds, cpu_seconds=0.0, spans=(), path=Path("x"))
    assert f"in all{seconds:>9.2f}" in taken.to_text()
    assert f"{taken.to_data()['seconds']:.2f}" == f"{seconds:.2f}"


def test_the_file_says_the_same(tmp_path: Path) -> None:
    def work() -> str:
        with spans.span("thinking"):
            return "done"

    result, taken = timed(work, Store(tmp_path), "some")
    assert result == "done"
    assert taken.path == tmp_path / "logs/some-timings.json"
    kept = json.loads(taken.path.read_text())
    assert kept == taken.to_data()
    assert [span["name"] for span in kept["spans"]] == ["start", "thinking"]


def test_what_the_work_raises_comes_through(tmp_path: Path) -> None:
    def work() -> None:
        raise RequestError("wrong", hint="mend it")

    with pytest.raises(RequestError, match="wrong"):
        timed(work, Store(tmp_path), "some")
    with spans.recording() as found:
        pass
    assert list(found.spans) == ["start"]
