"""Progress as plain values: logic emits events, sinks draw them.

A leaf module. Events carry plain keys and names, never objects of a package, so
that every package can emit them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Event):
    """A remark; not a problem."""

    text: str
    detail: bool = False
    """Whether it is for those alone who ask for more (`-v`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A warning; the work goes on."""

    text: str
    hint: str | None = None
    detail: str = ""
    """The reason, which people see with ``-v``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Event):
    """Checks that belong together were judged."""

    status: str
    """``PASS``, ``FAIL`` or ``SKIP``; the first word of both texts."""
    text: str
    """A line, and further ones on what did not pass."""
    full: str
    """The same with the values of what passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(Event):
    """A piece of work began."""

    task: str
    """Its key, unique among running tasks: ``build``; ``layer:base`` for a part of another task."""
    title: str
    """Text for people."""
    total_bytes: int | None = None
    """Size of the work, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdvanced(Event):
    """So many more bytes of a piece of work are done."""

    task: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone(Event):
    """A piece of work ended well."""

    task: str
    detail: str = ""
    """Result: ``217 MB``; may be empty."""
    seconds: float = 0.0
    """Duration, wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(Event):
    """A piece of work ended badly; the error itself travels as an exception."""

    task: str
    stopped: bool = False
    """Whether it was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReused(Event):
    """A layer was found in the store."""

    layer: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAwaited(Event):
    """Another build makes a layer, and this one waits for it."""

    layer: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDone(Event):
    """A member of a run over several files ended, or failed in a step before the last."""

    member: str
    problem: str = ""
    """The error, if it failed."""


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
    started = time.monotonic()
    emit(TaskStarted(task=key, title=title, total_bytes=total_bytes))
    running = Task(emit, key)
    try:
        yield running
    except BaseException as error:
        emit(TaskFailed(task=key, stopped=isinstance(error, KeyboardInterrupt)))
        raise
    if running.failed:
        emit(TaskFailed(task=key))
    else:
        emit(TaskDone(task=key, detail=running.detail, seconds=time.monotonic() - started))


def ignore(event: Event) -> None:
    """Drop an event."""
