"""Put single files and links in place: whole or not at all, readable by others, only if they differ."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from envbuild.errors import MachineError, RequestError

_CHUNK_BYTES = 64 * 1024 * 1024


def copy_file(source: Path, target: Path, *, mode: int, copied: Callable[[int], None]) -> None:
    """Copy a file, sharing its blocks where the file system can.

    Parameters
    ----------
    mode : int
        Of the copy, whatever the umask is.
    copied : callable
        Called with the bytes (count) that were copied since the last call.
    """
    staged = _beside(target)
    try:
        with source.open("rb") as reader, staged.open("xb") as writer:
            while count := _copy_some(reader.fileno(), writer.fileno()):
                copied(count)
            os.fchmod(writer.fileno(), mode)
            os.fsync(writer.fileno())
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)


def _copy_some(reader: int, writer: int) -> int:
    try:
        return os.copy_file_range(reader, writer, _CHUNK_BYTES)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.sendfile(writer, reader, None, _CHUNK_BYTES)


def write_file(path: Path, text: str, *, mode: int) -> bool:
    """Write a file whole or not at all; whether it was other before."""
    data = text.encode()
    with contextlib.suppress(FileNotFoundError):
        if not path.is_symlink() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
            return False
    staged = _beside(path)
    try:
        with staged.open("xb") as sink:
            sink.write(data)
            os.fchmod(sink.fileno(), mode)
            os.fsync(sink.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return True


def link(path: Path, target: str) -> bool:
    """Make a symbolic link, replacing what stands there in one step; whether it was other before."""
    if path.is_symlink() and str(path.readlink()) == target:
        return False
    staged = _beside(path)
    try:
        staged.symlink_to(target)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return True


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


@contextlib.contextmanager
def told(root: Path, verb: str, *, hint: str = "name another directory with --root DIR") -> Iterator[None]:
    """Tell what the file system refused as what it is: somebody's choice of a directory.

    Raises
    ------
    MachineError
        The disk is full.
    RequestError
        Anything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineError(
                f"no space left under `{root}`", hint="free some space and run it again"
            ) from error
        raise RequestError(
            f"cannot {verb} under `{root}`: {error.filename or root}: {error.strerror}", hint=hint
        ) from error
