"""Removes trees, whatever a step or a job left in them."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path


def remove(path: Path) -> None:
    """Remove a tree, read-only directories in it included; a missing one is no error."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        _remove_flat(path)


def _remove_flat(top: Path) -> None:
    """Remove a tree whose directories may be read-only, or deeper than paths and recursion reach.

    Each directory is moved up to the top before it is emptied, so that no path is longer than two names.
    """
    top.chmod(0o700)
    waiting, count = [top], 0
    while waiting:
        directory = waiting.pop()
        for entry in sorted(directory.iterdir()):
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink()
                continue
            # To be moved, a directory must be writable itself: its `..` changes.
            entry.chmod(0o700)
            below = entry
            if directory != top:
                below = top / f".{count}-{secrets.token_hex(8)}"
                entry.rename(below)
                count += 1
            waiting.append(below)
        if directory != top:
            directory.rmdir()
    top.rmdir()
