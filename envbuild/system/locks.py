"""Locks among processes, on files.

The kernel lets a lock go when its holder ends, however it ends (flock(2)). Not every network file system has
locks, or tells other machines of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from envbuild.system import clock, process

_PAUSE_S = 0.1


def open_lock(path: Path) -> int:
    """Open a lock's file, made if absent; closing it lets the lock go.

    Raises
    ------
    OSError
        It cannot be made.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def try_lock(file: int, *, shared: bool) -> bool | None:
    """Take a lock; return False where another process has it, None where the file system has no locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def wait_for_lock(file: int, *, shared: bool, waiting: Callable[[], None] = lambda: None) -> bool:
    """Take a lock once no other process has it; return False where the file system has none.

    Parameters
    ----------
    waiting : callable
        Called once if another process has it.

    Raises
    ------
    KeyboardInterrupt
        The run was ended while it waited.
    """
    taken = try_lock(file, shared=shared)
    if taken is False:
        waiting()
    # Not in the kernel: a thread that waits there cannot be interrupted.
    while taken is False:
        clock.pause(_PAUSE_S)
        if process.closing():
            raise KeyboardInterrupt
        taken = try_lock(file, shared=shared)
    return taken is not None
