"""What resolving keeps between runs: used by one command at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.events import Emit, Note
from envbuild.system import locks

HINT = "name another store with --store DIR or ENVBUILD_STORE"


def cannot_write(path: Path, error: OSError) -> MachineError:
    """Return the error for a place that cannot be written."""
    return MachineError(f"`{path}` cannot be written: {error.strerror or error}", hint=HINT)


@contextmanager
def alone(directory: Path, emit: Emit) -> Iterator[None]:
    """Keep other commands out of a directory for the length of a ``with`` block; wait for them first.

    On file systems without locks apt's own lock must do.
    """

    def waiting() -> None:
        emit(Note(text="another command resolves Debian packages over this store: waiting for it"))

    lock = locks.open_lock(directory / "envbuild.lock")
    try:
        locks.wait_for_lock(lock, shared=False, waiting=waiting)
        yield
    finally:
        os.close(lock)
