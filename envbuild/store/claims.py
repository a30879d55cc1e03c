"""One build of a layer at a time, among all processes that share a store.

For economy alone: nothing that is correct depends on it. Two builds of one
layer give the same bytes, and each is published whole; a file system whose
locks fail, or another machine's that it does not tell of, costs a second
build and no more.

Source: flock(2): the kernel lets a lock go when its holder ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from envbuild.system import clock, process

_PAUSE_S = 0.1
_SUFFIX = ".claim"
# In place of an open file: another process has the lock; there is none to be had.
_BUSY, _NONE = -1, -2


@contextlib.contextmanager
def claim(directory: Path, name: str) -> Iterator[bool]:
    """Hold a name while the block runs; wait until nobody else does.

    Parameters
    ----------
    directory : Path
        Where the lock's file lies, which is gone afterwards.
    name : str
        A file name.

    Yields
    ------
    bool
        Whether somebody else held it first: what they made may be there now.

    Raises
    ------
    KeyboardInterrupt
        The run was ended while it waited.
    """
    path = directory / f"{name}{_SUFFIX}"
    waited = False
    held = _taken(path)
    while held == _BUSY:
        waited = True
        clock.pause(_PAUSE_S)
        if process.closing():
            raise KeyboardInterrupt
        held = _taken(path)
    if held == _NONE:
        yield waited
        return
    try:
        yield waited
    finally:
        # Gone before it is let go: whoever opened it meanwhile finds that it lies nowhere, and opens anew.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(held)


def sweep_claims(directory: Path) -> None:
    """Take away the locks' files that killed processes left; those that are held stay."""
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        held = _taken(path, make=False)
        if held >= 0:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(held)


def _taken(path: Path, *, make: bool = True) -> int:
    """Return the open file of a lock that is ours now, or `_BUSY` or `_NONE`."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    try:
        file = os.open(path, flags, 0o666)
    except PermissionError:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return _NONE
    except OSError:
        return _NONE
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return _BUSY
    except OSError:
        os.close(file)
        return _NONE
    if _lies_at(file, path):
        return file
    os.close(file)
    return _BUSY if make else _NONE


def _lies_at(file: int, path: Path) -> bool:
    ours = os.fstat(file)
    try:
        there = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
