"""Where the time of a command goes: named pieces of work, with the wall-clock and CPU time that each took.

One command is one process, so what is measured is kept for the process; outside of `recording` a
span costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class Span:
    """A piece of work.

    Attributes
    ----------
    name : str
        What was done (``layer python: compress``); of one name there is one span.
    seconds : float
        Wall clock.
    cpu_seconds : float
        What its own thread computed, and the processes that it started and waited for.
    """

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Recording:
    """The spans of a command, in the order in which they began.

    Attributes
    ----------
    seconds, cpu_seconds : float
        Of the whole process since it was started: wall clock, and what it and all processes that it
        waited for computed. Set when the recording ends.
    """

    spans: dict[str, Span] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0


_lock = threading.Lock()
_recordings: list[Recording] = []
# The innermost span of each thread: what it starts is counted there.
_here = threading.local()


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Record spans while the block runs; what came before it is the span ``start``."""
    found = Recording()
    seconds, cpu_seconds = _age(), _used()
    found.spans["start"] = Span(name="start", seconds=seconds, cpu_seconds=cpu_seconds)
    _recordings.append(found)
    try:
        yield found
    finally:
        _recordings.remove(found)
        found.seconds, found.cpu_seconds = _age(), _used()


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """Measure a block; a span within it counts for itself and not for this one."""
    if not _recordings:
        yield
        return
    outer: Span | None = getattr(_here, "span", None)
    inner = Span(name=name)
    with _lock:
        for found in _recordings:
            found.spans.setdefault(name, Span(name=name))
    _here.span = inner
    started, computed = time.monotonic(), time.thread_time()
    try:
        yield
    finally:
        _here.span = outer
        inner.seconds += time.monotonic() - started
        inner.cpu_seconds += time.thread_time() - computed
        if outer is not None:
            outer.seconds -= time.monotonic() - started
            outer.cpu_seconds -= time.thread_time() - computed
        with _lock:
            for found in _recordings:
                total = found.spans[name]
                total.seconds += inner.seconds
                total.cpu_seconds += inner.cpu_seconds


def computed(seconds: float) -> None:
    """Count what a process of this thread computed."""
    inner: Span | None = getattr(_here, "span", None)
    if inner is not None:
        inner.cpu_seconds += seconds


def cpu_seconds_of(process: int) -> float:
    """Return what a process that has ended, and is not yet forgotten, computed with its children.

    0 where it is forgotten already.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    ticks = text.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _age() -> float:
    """Return how long this process has run, in seconds."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _used() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
