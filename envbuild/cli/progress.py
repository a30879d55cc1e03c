"""Progress of a run: bars on a terminal, plain lines in logs, JSON lines for programs; on standard error.

Layers are built in parallel, so sinks take events from several threads.
"""

from __future__ import annotations

import contextlib
import json as json_text
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from envbuild import workflows
from envbuild.cli.output import escape
from envbuild.events import (
    Emit,
    Event,
    LayerReused,
    Note,
    TaskAdvanced,
    TaskDone,
    TaskFailed,
    TaskStarted,
    Warned,
)
from envbuild.system.descriptors import named

if TYPE_CHECKING:
    from envbuild.workflows.settings import Settings

# Bytes between two advances of a task of unknown size.
_STEP_BYTES = 64 * 1024 * 1024


@contextlib.contextmanager
def session(
    *,
    json: bool = False,
    store: Path | None = None,
    apptainer: Path | None = None,
    recipes: Sequence[Path] | None = None,
    site: Path | None = None,
) -> Iterator[Settings]:
    """Yield the settings of a run that shows its progress, as JSON lines with `json`.

    Child processes end with the run. Absent options get their defaults.
    """
    with (
        choose_sink(sys.stderr, json=json) as emit,
        workflows.settings.running(
            workflows.settings.Settings.of(
                store=store, apptainer=apptainer, recipes=recipes, site=site, emit=emit
            )
        ) as settings,
    ):
        yield settings


@contextlib.contextmanager
def choose_sink(stream: TextIO, *, json: bool) -> Iterator[Emit]:
    """Yield the sink for a stream: JSON lines if requested, bars on a terminal, else plain lines."""
    if json:
        yield json_lines(stream)
    elif stream.isatty():
        from envbuild.cli.bars import bars  # noqa: PLC0415  # rich takes 0.1 s, and pipes do not need it

        with bars(stream, Lines().line) as emit:
            yield emit
    else:
        yield plain_lines(stream)


def plain_lines(stream: TextIO) -> Emit:
    """Return a sink that writes a line for each event except advances."""
    mutex, lines = threading.Lock(), Lines()

    def emit(event: Event) -> None:
        with mutex:
            if (line := lines.line(event)) is not None:
                stream.write(line + "\n")
                stream.flush()

    return emit


class Lines:
    """Formats events as lines; remembers the titles of running tasks."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}

    def line(self, event: Event) -> str | None:
        """Return an event as one line; None for an advance."""
        text = None
        match event:
            case TaskStarted():
                self._titles[event.task] = event.title
                text = f"{event.title} ..."
            case TaskDone():
                detail = f", {event.detail}" if event.detail else ""
                text = f"{self._title(event.task)}: done in {event.seconds:.1f} s{detail}"
            case TaskFailed():
                text = f"{self._title(event.task)}: failed"
            case LayerReused():
                text = f"layer {event.layer}: in the store"
            case Note():
                text = event.text
            case Warned():
                text = f"warning: {event.text}" + (f" ({event.hint})" if event.hint else "")
        return None if text is None else escape(text)

    def _title(self, task: str) -> str:
        return self._titles.pop(task, task)


def json_lines(stream: TextIO) -> Emit:
    """Return a sink that writes one JSON object per line: its kind as ``event``, and its fields.

    Small advances are summed up to about twenty lines a task.
    """
    mutex = threading.Lock()
    steps: dict[str, int] = {}
    pending: dict[str, int] = {}

    def write(event: Event) -> None:
        # ASCII, so that no text controls the terminal.
        text = json_text.dumps({"event": _kind(event), **asdict(event)}, sort_keys=True)
        stream.write(named(text) + "\n")
        stream.flush()

    def emit(event: Event) -> None:
        with mutex:
            match event:
                case TaskStarted():
                    steps[event.task] = max((event.total_bytes or 20 * _STEP_BYTES) // 20, 1)
                case TaskAdvanced():
                    pending[event.task] = pending.get(event.task, 0) + event.bytes
                    if pending[event.task] < steps.get(event.task, _STEP_BYTES):
                        return
                    event = TaskAdvanced(task=event.task, bytes=pending.pop(event.task))
                case TaskDone() | TaskFailed():
                    steps.pop(event.task, None)
                    if count := pending.pop(event.task, 0):
                        write(TaskAdvanced(task=event.task, bytes=count))
            write(event)

    return emit


def _kind(event: Event) -> str:
    """``TaskStarted`` → ``task-started``."""
    name = type(event).__name__
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in name).lstrip("-")
