"""Sinks: how progress looks to people (bars, plain lines) and to programs (JSON lines).

Everything goes to standard error; standard output carries data only. Layers
are built side by side, so every sink takes events from several threads.
"""

from __future__ import annotations

import contextlib
import json as json_text
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

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
    from rich.console import Console
    from rich.progress import ProgressColumn, TaskID


# How much a task of unknown size advances between two lines of a log.
_STEP_BYTES = 64 * 1024 * 1024


def neutral(text: str) -> str:
    """Return the text with names of directories for descriptors, and escapes for unprintable characters.

    Events carry text from files and programs: none of it may steer a terminal
    or pretend to be a line of ours.
    """
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in named(text))


@contextlib.contextmanager
def choose(*, stderr: TextIO, json: bool) -> Iterator[Emit]:
    """Yield the sink that fits: JSON lines if asked for, bars on a terminal, plain lines otherwise."""
    if json:
        yield json_lines(stderr)
    elif stderr.isatty():
        from rich.console import Console  # noqa: PLC0415  # takes 0.1 s, and pipes have no use for it

        with bars(Console(file=stderr)) as emit:
            yield emit
    else:
        yield plain(stderr)


def json_lines(stream: TextIO) -> Emit:
    """Return a sink that writes one JSON object a line: ``event`` names its kind, the rest its fields.

    What a task advanced is summed up, and told about twenty times a task.
    """
    lock = threading.Lock()
    advances = _Advances()

    def emit(event: Event) -> None:
        with lock:
            for told in advances.thin(event):
                values = asdict(told).items()
                texts = {key: named(value) if isinstance(value, str) else value for key, value in values}
                data = {"event": _kind(told), **texts}
                # ASCII: escapes whatever could steer a terminal.
                stream.write(json_text.dumps(data, sort_keys=True) + "\n")
            stream.flush()

    return emit


class _Advances:
    """Sums of small advances, so that a log holds a few large ones; no byte is lost."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._untold: dict[str, int] = {}

    def thin(self, event: Event) -> list[Event]:
        """Return what to write when an event comes in."""
        if isinstance(event, TaskStarted):
            self._steps[event.task] = max(event.total_bytes // 20, 1) if event.total_bytes else _STEP_BYTES
        elif isinstance(event, TaskAdvanced):
            count = self._untold.pop(event.task, 0) + event.bytes
            if count >= self._steps.get(event.task, _STEP_BYTES):
                return [TaskAdvanced(task=event.task, bytes=count)]
            self._untold[event.task] = count
            return []
        elif isinstance(event, TaskDone | TaskFailed):
            self._steps.pop(event.task, None)
            if left := self._untold.pop(event.task, 0):
                return [TaskAdvanced(task=event.task, bytes=left), event]
        return [event]


def plain(stream: TextIO) -> Emit:
    """Return a sink that writes one line for what began, ended or deserves notice; no colour."""
    lock = threading.Lock()
    titles: dict[str, str] = {}

    def emit(event: Event) -> None:
        with lock:
            line = _line(event, titles)
            if line is not None:
                stream.write(line + "\n")
                stream.flush()

    return emit


@contextlib.contextmanager
def bars(console: Console) -> Iterator[Emit]:
    """Yield a sink that shows a bar or a spinner for whatever runs, and lines for what ended.

    Parameters
    ----------
    console : Console
        A rich console on a terminal.
    """
    from rich.markup import escape  # noqa: PLC0415  # as above
    from rich.progress import (  # noqa: PLC0415
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    lock = threading.Lock()
    titles: dict[str, str] = {}
    running: dict[str, TaskID] = {}
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *_size_columns(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:

        def emit(event: Event) -> None:
            with lock:
                line = _line(event, titles)
                if isinstance(event, TaskStarted):
                    title = escape(neutral(event.title))
                    running[event.task] = progress.add_task(title, total=event.total_bytes)
                elif isinstance(event, TaskAdvanced) and event.task in running:
                    progress.advance(running[event.task], event.bytes)
                elif isinstance(event, TaskDone | TaskFailed) and event.task in running:
                    progress.remove_task(running.pop(event.task))
                if line is not None and not isinstance(event, TaskStarted):
                    progress.console.print(escape(line), style=_style(event), soft_wrap=True, highlight=False)

        yield emit


def _size_columns() -> list[ProgressColumn]:
    """Return a bar and a size that show where the total is known; elsewhere the spinner says enough."""
    from rich.progress import BarColumn, DownloadColumn, Task  # noqa: PLC0415  # as above
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class Bar(BarColumn):
        def render(self, task: Task) -> ProgressBar:
            return super().render(task) if task.total is not None else ProgressBar(width=0)

    class Size(DownloadColumn):
        def render(self, task: Task) -> Text:
            return super().render(task) if task.total is not None else Text()

    return [Bar(bar_width=24), Size()]


def _line(event: Event, titles: dict[str, str]) -> str | None:
    """Return the event as one line, None for those that are none; remember what tasks are called."""
    line = None
    match event:
        case TaskStarted():
            titles[event.task] = neutral(event.title)
            line = f"{titles[event.task]} ..."
        case TaskDone():
            detail = f", {neutral(event.detail)}" if event.detail else ""
            line = f"{_title(event.task, titles)}: done in {event.seconds:.1f} s{detail}"
        case TaskFailed():
            line = f"{_title(event.task, titles)}: failed"
        case LayerReused():
            line = f"layer {neutral(event.layer)}: in the store"
        case Note():
            line = neutral(event.text)
        case Warned():
            hint = f" ({neutral(event.hint)})" if event.hint else ""
            line = f"warning: {neutral(event.text)}{hint}"
    return line


def _title(task: str, titles: dict[str, str]) -> str:
    return titles.pop(task, neutral(task))


def _style(event: Event) -> str | None:
    if isinstance(event, TaskFailed):
        return "red"
    return "yellow" if isinstance(event, Warned) else None


def _kind(event: Event) -> str:
    """``TaskStarted`` → ``task-started``."""
    name = type(event).__name__
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in name).lstrip("-")
