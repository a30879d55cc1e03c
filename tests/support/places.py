"""Directories that other users reach, and their removal in time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.users import remove

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
            remove(*mine)
