"""Timings: where the time of a run went, for people and as JSON beside the logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from envbuild.store.store import Store
from envbuild.system import spans
from envbuild.system.spans import Span

SCHEMA = 1
# What took less is told as one sum.
_TOLD_S = 0.005

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a run went.

    Attributes
    ----------
    seconds : float
        Wall clock of the whole process, from its start.
    cpu_seconds : float
        What it computed, with all processes that it waited for.
    spans : tuple of Span
        Pieces of work in the order in which they began. Layers are built side by side, so that
        their wall clocks may add up to more than the whole; what threads within one piece
        compute is in no piece, and in the whole.
    path : Path
        The file that holds the same as JSON.
    """

    seconds: float
    cpu_seconds: float
    spans: tuple[Span, ...]
    path: Path

    def to_data(self) -> dict[str, object]:
        """Return it as JSON data, schema `SCHEMA`: ``schema``, ``seconds``, ``cpu_seconds``, ``spans``."""
        return {
            "schema": SCHEMA,
            "seconds": _told(self.seconds),
            "cpu_seconds": _told(self.cpu_seconds),
            "spans": [
                {**asdict(span), "seconds": _told(span.seconds), "cpu_seconds": _told(span.cpu_seconds)}
                for span in self.spans
            ],
        }

    def to_text(self) -> str:
        """Return it as a table."""
        told = [span for span in self.spans if span.seconds >= _TOLD_S or span.cpu_seconds >= _TOLD_S]
        rest = [span for span in self.spans if span not in told]
        small = Span(
            name=f"smaller pieces ({len(rest)})",
            seconds=sum(span.seconds for span in rest),
            cpu_seconds=sum(span.cpu_seconds for span in rest),
        )
        whole = Span(name="in all", seconds=self.seconds, cpu_seconds=self.cpu_seconds)
        rows = [*told, *([small] if rest else []), whole]
        width = max(len(row.name) for row in rows)
        lines = [f"{'':<{width}}  {'wall s':>7}  {'CPU s':>7}"]
        lines += [
            f"{row.name:<{width}}  {_told(row.seconds):>7.2f}  {_told(row.cpu_seconds):>7.2f}" for row in rows
        ]
        return "\n".join([*lines, f"timings: {self.path}"])


def _told(seconds: float) -> float:
    # Rounded once: the table never differs from the JSON in its last digit.
    return round(seconds, 2)


def timed(work: Callable[[], T], store: Store, name: str) -> tuple[T, Timings]:
    """Do some work and measure it.

    Parameters
    ----------
    name : str
        What the timings are kept under: ``logs/NAME-timings.json`` in the store.

    Raises
    ------
    EnvbuildError
        What the work raises; the store cannot be written.
    """
    with spans.recording() as found:
        result = work()
    timings = Timings(
        seconds=found.seconds,
        cpu_seconds=found.cpu_seconds,
        spans=tuple(found.spans.values()),
        path=store.path / "logs" / f"{name}-timings.json",
    )
    store.write(f"logs/{timings.path.name}", json.dumps(timings.to_data(), indent=1) + "\n")
    return result, timings
