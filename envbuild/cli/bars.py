"""Progress on a terminal, drawn by rich."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress_bar import ProgressBar
from rich.text import Text

from envbuild.cli.output import escape
from envbuild.events import Emit, Event, TaskAdvanced, TaskDone, TaskFailed, TaskStarted, Warned


@contextlib.contextmanager
def bars(stream: TextIO, line_of: Callable[[Event], str | None]) -> Iterator[Emit]:
    """Yield a sink that shows a bar or a spinner for each running task, and lines for other events."""
    mutex, running = threading.Lock(), dict[str, TaskID]()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), _Bar(bar_width=24), _Size(), Elapsed())
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:

        def emit(event: Event) -> None:
            with mutex:
                line = line_of(event)
                match event:
                    case TaskStarted():
                        title = escape_markup(escape(event.title))
                        running[event.task] = progress.add_task(title, total=event.total_bytes)
                        return
                    case TaskAdvanced() if event.task in running:
                        progress.advance(running[event.task], event.bytes)
                    case TaskDone() | TaskFailed() if event.task in running:
                        progress.remove_task(running.pop(event.task))
                if line is not None:
                    style = {TaskFailed: "red", Warned: "yellow"}.get(type(event))
                    progress.console.print(escape_markup(line), style=style, soft_wrap=True, highlight=False)

        yield emit


class _Bar(BarColumn):
    """A bar for tasks whose size is known."""

    def render(self, task: Task) -> ProgressBar:
        return super().render(task) if task.total is not None else ProgressBar(width=0)


class _Size(DownloadColumn):
    """Bytes of tasks whose size is known."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.total is not None else Text()
