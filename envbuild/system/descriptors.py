"""Directories and files that are reached through an open descriptor, whatever becomes of their names.

Whoever may write to the parent of a directory can put another one, or a link, in its place at any time. A
path through `/proc/self/fd` (proc(5)) leads to what was opened and checked. Other programs
cannot use such a path, and people cannot read it: what they get is `named` first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_THROUGH = re.compile(r"/proc/self/fd/(\d+)(?!\d)")
# Only ours are renamed: a step's script may write to /proc/self/fd/2.
_open: set[int] = set()


def open_directory(path: Path) -> int:
    """Open a directory, for `through`; a symbolic link in its place is not followed.

    Raises
    ------
    OSError
        It is not there or is no directory, or may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    _open.add(descriptor)
    return descriptor


def open_file(path: Path) -> int:
    """Open a file to be read, for `through`; a symbolic link in its place is not followed.

    Raises
    ------
    OSError
        It is not there, or may not be read.
    """
    # A pipe in its place must not make us wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    _open.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close what `open_directory` or `open_file` opened."""
    _open.discard(descriptor)
    os.close(descriptor)


def through(descriptor: int) -> Path:
    """Return the path of what is open; it holds in this process alone."""
    return Path(f"/proc/self/fd/{descriptor}")


def named(text: str) -> str:
    """Return a text with present names in place of paths through descriptors."""
    return _THROUGH.sub(_name, text)


def _name(match: re.Match[str]) -> str:
    return str(Path(match[0]).readlink()) if int(match[1]) in _open else match[0]
