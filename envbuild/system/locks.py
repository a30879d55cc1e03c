"""Locks among processes, on files.

The kernel releases a lock when its holder ends, however it ends (flock(2)). Some network file systems have
no locks, or do not share them among machines.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.system import process

_PAUSE_S = 0.1


def open_lock(path: Path) -> int:
    """Open a lock's file, created if absent; closing it releases the lock."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def is_at(path: Path, file: int) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def try_lock(file: int, *, shared: bool) -> bool | None:
    """Take a lock; return False if another process has it, None if the file system has no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def wait_for_lock(
    file: int, *, shared: bool, waiting: Callable[[], None] = lambda: None, patience_s: float = 0.0
) -> bool:
    """Take a lock once no other process has it; return False if the file system has no locks.

    `waiting` is called once if another process keeps it longer than `patience_s`. KeyboardInterrupt: the run
    was ended meanwhile.
    """
    taken = try_lock(file, shared=shared)
    pauses = 0
    while taken is False:
        if pauses == round(patience_s / _PAUSE_S):
            waiting()
        # Polling: a thread that waits in the kernel cannot be interrupted.
        process.pause(_PAUSE_S)
        pauses += 1
        taken = try_lock(file, shared=shared)
    return taken is not None


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Keep other processes out of the block; without effect if the file system has no locks.

    The file is created if absent; `waiting` is called once if another process has the lock.
    """
    lock = open_lock(path)
    try:
        wait_for_lock(lock, shared=False, waiting=waiting)
        yield
    finally:
        os.close(lock)
