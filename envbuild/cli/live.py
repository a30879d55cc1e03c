"""Progress on a terminal, drawn by rich: what runs, with bars where the size is known."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from envbuild.cli.output import escape
from envbuild.events import (
    Emit,
    Event,
    Judged,
    MemberDone,
    TaskAdvanced,
    TaskDone,
    TaskFailed,
    TaskStarted,
    Warned,
)

_COLOURS = {"PASS": "green", "FAIL": "bold red", "SKIP": "yellow"}


@contextlib.contextmanager
def live(stream: TextIO, line_of: Callable[[Event], str | None]) -> Iterator[Emit]:
    """Yield a sink that shows a line for each running task, and above them lines that stay."""
    mutex, running = threading.Lock(), dict[str, TaskID]()
    # Names are not markup, and `:six:` is no emoji.
    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    title = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    columns = (SpinnerColumn(), title, _Bar(), _Size(), Elapsed())
    progress = Progress(*columns, console=console, transient=True, expand=True)
    try:

        def emit(event: Event) -> None:
            with mutex:
                line = line_of(event)
                match event:
                    case TaskStarted():
                        progress.start()
                        # A layer's name is enough below the task that builds layers.
                        name = event.task.removeprefix("layer:")
                        title = event.title if name == event.task else f"  {name}"
                        running[event.task] = progress.add_task(escape(title), total=event.total_bytes)
                    case TaskAdvanced() if event.task in running:
                        progress.advance(running[event.task], event.bytes)
                    case TaskDone() | TaskFailed() if event.task in running:
                        progress.remove_task(running.pop(event.task))
                if line is not None:
                    console.print(_coloured(line, event), soft_wrap=True)

        yield emit
    finally:
        progress.stop()


def _coloured(line: str, event: Event) -> Text:
    text = Text(line)
    if isinstance(event, Judged):
        text.stylize(_COLOURS.get(event.status, ""), 0, len(event.status))
    elif isinstance(event, MemberDone) and event.problem:
        text.stylize("red")
    elif isinstance(event, Warned | TaskFailed):
        text.stylize("yellow" if isinstance(event, Warned) or event.stopped else "red")
    return text


class _Bar(ProgressColumn):
    """A bar for tasks whose size is known."""

    _bar = BarColumn(bar_width=16)

    def render(self, task: Task) -> ProgressBar | Text:
        return self._bar.render(task) if task.total is not None else Text()


class _Size(DownloadColumn):
    """Bytes of tasks whose size is known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total is not None else Text()
