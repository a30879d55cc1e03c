"""Directories that root and the ordinary user both reach, and what removes them in time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# All that are there, in the order of their making.
_made: list[Path] = []


def make_place(shared: Path, name: str = "", *, lasting: bool = False) -> Path:
    """Make a directory below `shared`; unless it is lasting, the innermost `swept` around removes it.

    Its name is its own: tests of two files that think of the same `name` do not meet.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{name}-" if name else None, dir=shared))
    path.chmod(0o755)
    if not lasting:
        _made.append(path)
    return path


@contextmanager
def swept() -> Iterator[None]:
    """Remove at the end what was made meanwhile, and nothing else."""
    before = len(_made)
    try:
        yield
    finally:
        mine = _made[before:]
        del _made[before:]
        if mine:
            # What lies in directories that their owner may not write goes, too. Files stay as they are:
            # they may be hard links to those of another store.
            opened = ["-type", "d", "-exec", "chmod", "u+rwx", "{}", "+"]
            subprocess.run(["find", *mine, *opened], check=False, capture_output=True)
            subprocess.run(["rm", "-rf", "--", *mine], check=True)
