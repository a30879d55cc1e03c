"""What resolving keeps between runs: used by one command at a time."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.events import Emit, Note

HINT = "name another store with --store DIR or ENVBUILD_STORE"

# File systems that know no such locks (some network mounts): apt's own lock must do there.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


def cannot_write(path: Path, error: OSError) -> MachineError:
    """Return the error for a place that cannot be written."""
    return MachineError(f"`{path}` cannot be written: {error.strerror or error}", hint=HINT)


@contextmanager
def alone(directory: Path, emit: Emit) -> Iterator[None]:
    """Keep other commands out of a directory for the length of a ``with`` block; wait for them first."""
    descriptor = os.open(directory / "envbuild.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, emit)
        yield
    finally:
        os.close(descriptor)  # which also gives up the lock


def _lock(descriptor: int, emit: Emit) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            emit(Note(text="another command resolves Debian packages over this store: waiting for it"))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
