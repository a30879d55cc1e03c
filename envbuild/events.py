"""Progress as plain values: logic emits events, sinks draw them.

A leaf module. Events carry plain keys and names, never objects of a room, so
that every room may emit them and no room is imported for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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


def ignore(event: Event) -> None:
    """Drop an event: the sink of those who do not listen."""
