"""Directories and files that are reached through an open descriptor, whatever happens to their names.

A user who may write to the parent of a directory can put another one, or a link, in its place at any time.
A path through `/proc/self/fd` (proc(5)) leads to the directory that was opened and checked. It means nothing
to other programs and to people: `with_real_paths` replaces it by the present name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_THROUGH = re.compile(r"/proc/self/fd/(\d+)(?!\d)")
# Other descriptors stay: a step's script may write to /proc/self/fd/2.
_open: set[int] = set()


def open_directory(path: Path) -> int:
    """Open a directory, for `descriptor_path`; do not follow a symbolic link in its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    _open.add(descriptor)
    return descriptor


def open_file(path: Path) -> int:
    """Open a file to be read, for `descriptor_path`; do not follow a symbolic link in its place."""
    # A pipe in its place must not make us wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    _open.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close a descriptor of `open_directory` or `open_file`."""
    _open.discard(descriptor)
    os.close(descriptor)


def descriptor_path(descriptor: int) -> Path:
    """Return the path through a descriptor, valid in this process only."""
    return Path(f"/proc/self/fd/{descriptor}")


def with_real_paths(text: str) -> str:
    """Return a text with paths through descriptors replaced by present names."""
    return _THROUGH.sub(_name, text)


def _name(match: re.Match[str]) -> str:
    return str(Path(match[0]).readlink()) if int(match[1]) in _open else match[0]
