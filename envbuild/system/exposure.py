"""Whether a store lies open to everybody: what it holds becomes images."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

# Where a store keeps finished layers, and what it knows of them.
_LAYERS = ("blobs", "layers")


def is_open_to_all(store: Path) -> bool:
    """Return whether everybody may write to a store, or to what it keeps layers in."""
    return any(map(_is_open, (store, *(store / name for name in _LAYERS))))


def closing(store: Path | str) -> str:
    """Return the command that leaves a store to its owner and its group."""
    return f"chmod -R o-w {shlex.quote(str(store))}"


def _is_open(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False  # there is none yet, or nobody else can come there either
