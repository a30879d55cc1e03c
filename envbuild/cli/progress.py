"""Progress of a run: a live display on a terminal, plain lines in logs, JSON lines for programs; on stderr.

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
from envbuild.cli import output
from envbuild.cli.output import escape
from envbuild.events import (
    Emit,
    Event,
    Judged,
    LayerAwaited,
    LayerReused,
    MemberDone,
    Note,
    TaskAdvanced,
    TaskDone,
    TaskFailed,
    TaskStarted,
    Warned,
)
from envbuild.system.descriptors import with_real_paths

if TYPE_CHECKING:
    from envbuild.workflows.settings import Settings

# Bytes between two advances of a task of unknown size.
_STEP_BYTES = 64 * 1024 * 1024
# Parts of tasks: too many for lines of their own.
_PARTS = ("lock:", "layer:wheel:")


@contextlib.contextmanager
def session(
    *,
    json: bool = False,
    store: Path | None = None,
    apptainer: Path | None = None,
    recipes: Sequence[Path] | None = None,
    site: Path | None = None,
    architecture: str | None = None,
) -> Iterator[Settings]:
    """Yield the settings of a run that shows its progress, as JSON lines with `json`.

    Child processes end with the run. Absent options get their defaults.
    """
    with (
        choose_sink(sys.stderr, json=json, level=output.level()) as emit,
        workflows.settings.running(
            workflows.settings.Settings.of(
                store=store,
                apptainer=apptainer,
                recipes=recipes,
                site=site,
                architecture=architecture,
                emit=emit,
            )
        ) as settings,
    ):
        yield settings


@contextlib.contextmanager
def choose_sink(stream: TextIO, *, json: bool, level: int = 0) -> Iterator[Emit]:
    """Yield the sink that fits a stream: JSON lines if asked for, live on a terminal, else plain lines.

    `level` is that of `set_level`.
    """
    if json:
        yield json_lines(stream)
    elif stream.isatty() and level >= 0:
        from envbuild.cli.live import live  # noqa: PLC0415  # rich takes 0.1 s, and pipes do not need it

        with live(stream, Lines(level, live=True).line) as emit:
            yield emit
    else:
        yield plain_lines(stream, level)


def plain_lines(stream: TextIO, level: int = 0) -> Emit:
    """Return a sink that writes what `Lines` makes of events."""
    mutex, lines = threading.Lock(), Lines(level)

    def emit(event: Event) -> None:
        with mutex:
            if (line := lines.line(event)) is not None:
                stream.write(line + "\n")
                stream.flush()

    return emit


class Lines:
    """Events as lines of text; remembers the titles of running tasks.

    `level` is that of `set_level`. With `live`, finished tasks have no line: a display shows running ones.
    """

    def __init__(self, level: int = 0, *, live: bool = False) -> None:
        self._level, self._live = level, live
        self._titles: dict[str, str] = {}

    def line(self, event: Event) -> str | None:
        """Return an event as a line, a judgement as several; None if there is nothing to say."""
        normal, verbose = self._level >= 0, self._level > 0
        text: str | None = None
        match event:
            case TaskStarted():
                self._titles[event.task] = event.title
                text = f"{event.title} ..." if verbose and not self._live else None
            case TaskFailed():
                text = self._ended(event.task, "stopped" if event.stopped else "failed")
            case TaskDone():
                detail = f", {event.detail}" if event.detail else ""
                ended = self._ended(event.task, f"done in {event.seconds:.1f} s{detail}")
                shown = normal and not self._live and not event.task.startswith(_PARTS)
                text = ended if verbose or shown else None
            case Judged() if normal or event.status == "FAIL":
                return escape(event.full if verbose else event.text, keep="\n")
            case LayerReused() if verbose:
                text = f"layer {event.layer}: in the store"
            case LayerAwaited() if normal:
                text = f"waiting for another build over this store, which makes layer {event.layer}"
            case MemberDone() if normal or event.problem:
                text = f"{event.member}: " + (f"failed: {event.problem}" if event.problem else "done")
            case Note() if verbose or (normal and not event.detail):
                text = event.text
            case Warned():
                text = f"warning: {event.text}" + (f" ({event.hint})" if event.hint else "")
                text += f": {event.detail}" if verbose and event.detail else ""
        return None if text is None else escape(text)

    def _ended(self, task: str, how: str) -> str | None:
        title = self._titles.pop(task, task)
        # Of a test its judgement says how it ended.
        return None if task.startswith("test:") else f"{title}: {how}"


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
        stream.write(with_real_paths(text) + "\n")
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
