"""What resolving keeps between runs: a directory for each user, used by one command at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
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


def of_this_user(cache_dir: Path) -> Path:
    """Return this user's own directory below one that several may share; made if absent.

    apt and uv give what they write to its maker alone, and what they read back
    they trust: neither may come from somebody else.

    Raises
    ------
    MachineError
        It cannot be made, or belongs to another user.
    """
    user = os.geteuid()
    path = (cache_dir / f"user-{user}").absolute()
    try:
        _share(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise cannot_write(path, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
        raise MachineError(f"`{path}` is not a directory of this user", hint=f"remove it, or {HINT}")
    return path


def _share(path: Path) -> None:
    """Make a directory that those may write who may write the one above it, whatever the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        path.chmod(stat.S_IMODE(path.parent.stat().st_mode))


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
