"""Progress as plain values: logic emits events, sinks draw them.

A leaf module. Events carry plain keys and names, never objects of a package, so
that every package can emit them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envbuild.system import clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """Something worth knowing that is no problem."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """Something that may surprise later; the work goes on."""

    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(Event):
    """A piece of work began.

    Attributes
    ----------
    task : str
        Its key, unique among what runs at the same time (``layer:base``).
    title : str
        What people read.
    total_bytes : int, optional
        How much there is to move, where that is known.
    """

    task: str
    title: str
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdvanced(Event):
    """A piece of work moved on by so many bytes."""

    task: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone(Event):
    """A piece of work ended well.

    Attributes
    ----------
    detail : str
        What came of it (``217 MB``); may be empty.
    seconds : float
        How long it took, wall clock.
    """

    task: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(Event):
    """A piece of work ended badly; the error itself travels as an exception."""

    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReused(Event):
    """A layer was found in the store."""

    layer: str
    key: str


Emit = Callable[[Event], None]


@dataclass(slots=True)
class Task:
    """A piece of work in progress; see `task`."""

    emit: Emit
    key: str
    detail: str = ""
    """Result to show when it ends."""
    failed: bool = False
    """Whether it ended badly although nothing was raised."""

    def advance(self, count: int) -> None:
        """Report that so many more bytes are done."""
        self.emit(TaskAdvanced(task=self.key, bytes=count))


@contextlib.contextmanager
def task(emit: Emit, key: str, title: str, *, total_bytes: int | None = None) -> Iterator[Task]:
    """Report the start, the end and the duration of a piece of work; it failed if anything was raised."""
    started = clock.seconds()
    emit(TaskStarted(task=key, title=title, total_bytes=total_bytes))
    running = Task(emit, key)
    try:
        yield running
    except BaseException:
        emit(TaskFailed(task=key))
        raise
    if running.failed:
        emit(TaskFailed(task=key))
    else:
        emit(TaskDone(task=key, detail=running.detail, seconds=clock.seconds() - started))


def ignore(event: Event) -> None:
    """Drop an event: the sink of those who do not listen."""
