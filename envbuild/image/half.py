"""A file that becomes an image: its file systems may be copied into it before the rest of it is known."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.system.leftovers import half_of

Advanced = Callable[[int], None]

_SQUASHFS_MAGIC = b"hsqs"
_COPY_BYTES = 16 * 1024 * 1024
# What copy_file_range says where two file systems, or one of a kind, cannot do it.
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EIO)
_VERIFY = "`envbuild cache verify --repair` puts aside what is damaged; then build it again"
_HINT = "name a file in a directory of yours, with space, with `-o IMAGE.sif`"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(slots=True)
class _Copied:
    """How many bytes of which file are there; of which it was as it was then."""

    source: tuple[int, ...]
    size_bytes: int
    done: int = 0


class Half:
    """A file beside its target, which takes its place once it is whole; used by one thread at a time.

    Parameters
    ----------
    path : Path
        The target.
    partial : Path
        The file; it is ours alone.
    file : int
        The same, open for writing.
    """

    def __init__(self, path: Path, partial: Path, file: int) -> None:
        self.path = path
        self._partial = partial
        self._file = file
        # By where it begins, in bytes.
        self._copied: dict[int, _Copied] = {}

    def write(self, content: bytes, offset: int) -> None:
        """Write bytes at a place."""
        view = memoryview(content)
        while view:
            count = os.pwrite(self._file, view, offset)
            view, offset = view[count:], offset + count

    def keep(self, places: Mapping[int, int]) -> None:
        """Keep what was copied if all of it has its place, and else nothing.

        Parameters
        ----------
        places : mapping of int to int
            Where each file system begins → its length, in bytes.
        """
        if any(places.get(offset) != copied.size_bytes for offset, copied in self._copied.items()):
            self.forget()

    def forget(self) -> None:
        """Give back the space of all that was copied."""
        self._copied.clear()
        os.ftruncate(self._file, 0)

    def copy(
        self,
        source: Path,
        size_bytes: int,
        offset: int,
        advanced: Advanced = lambda _: None,
        over: threading.Event | None = None,
    ) -> None:
        """Copy a squashfs to a place, by reference where the file system can; what is there of it stays.

        Parameters
        ----------
        size_bytes : int
            Its length, as it was when it was made.
        advanced : callable
            Called with the number of bytes each time that so many are there.
        over : threading.Event, optional
            Ends the copying before its end.

        Raises
        ------
        MachineError
            It cannot be read, or is no squashfs of that length.
        OSError
            It cannot be written: then all that was copied is forgotten.
        """
        try:
            file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise MachineError(
                f"the layer `{source}` cannot be read: {error.strerror}", hint=_VERIFY
            ) from error
        try:
            status = os.fstat(file)
            if status.st_size != size_bytes or os.pread(file, 4, 0) != _SQUASHFS_MAGIC:
                raise MachineError(
                    f"`{source}` is not the squashfs of {size_bytes} bytes that it was", hint=_VERIFY
                )
            known = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            copied = self._copied.get(offset)
            if copied is None or copied.source != known:
                # Who shares the store may have put another in its place: the bytes of that are not here.
                copied = self._copied[offset] = _Copied(known, size_bytes)
            advanced(copied.done)
            while copied.done < size_bytes and not (over is not None and over.is_set()):
                done = copied.done
                with self._or_nothing():
                    count = self._copy_some(file, done, offset + done, min(_COPY_BYTES, size_bytes - done))
                if count == 0:
                    raise MachineError(f"`{source}` became shorter while it was copied", hint=_VERIFY)
                self._begin_to_write(offset + done, count)
                copied.done += count
                advanced(count)
        finally:
            os.close(file)

    def _begin_to_write(self, offset: int, count: int) -> None:
        """Let the disk take a piece while the next one is copied, in place of all of them at the end."""
        with contextlib.suppress(OSError):
            # Linux writes what it is told to drop, and what it is writing stays in memory.
            os.posix_fadvise(self._file, offset, count, os.POSIX_FADV_DONTNEED)

    def _copy_some(self, source: int, start: int, offset: int, count: int) -> int:
        try:
            return os.copy_file_range(source, self._file, count, start, offset)
        except OSError as error:
            if error.errno not in _CANNOT_COPY:
                raise
        try:
            chunk = os.pread(source, min(count, 1024 * 1024), start)
        except OSError as error:
            raise MachineError(f"a layer cannot be read: {error.strerror}", hint=_VERIFY) from error
        self.write(chunk, offset)
        return len(chunk)

    def save(self) -> None:
        """See that what was copied is on the disk.

        Raises
        ------
        OSError
            It is not, and all of it is forgotten: the next one who asks would not be told of it again.
        """
        with self._or_nothing():
            os.fdatasync(self._file)

    @contextlib.contextmanager
    def _or_nothing(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.forget()
            raise

    def room_bytes(self) -> int:
        """Return how much may be written beside it."""
        status = os.fstatvfs(self._file)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def finish(self) -> None:
        """Let the file take its target's place, once it is on the disk.

        Raises
        ------
        OSError
            It cannot.
        """
        os.fsync(self._file)
        # Before the name: a file that somebody writes cannot be executed.
        self.close()
        self._partial.replace(self.path)
        _sync_directory(self.path.parent)


@contextlib.contextmanager
def half_image(path: Path) -> Iterator[Half]:
    """Give a new file beside a target; it is gone when the block ends without `Half.finish`.

    Raises
    ------
    RequestError
        Nothing can be written there: a directory, a missing or unwritable one.
    MachineError
        The disk is full or fails.
    """
    try:
        if path.is_dir():
            raise RequestError(f"`{path}` is a directory", hint=_HINT)
        if path.exists() and not path.is_file():
            # Replacing /dev/null or a named pipe is never what was meant.
            raise RequestError(f"`{path}` is not a regular file", hint=_HINT)
        partial = half_of(path)
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777)
    except OSError as error:
        raise unwritable(path, error) from error
    half = Half(path, partial, file)
    try:
        yield half
    finally:
        with contextlib.suppress(OSError):  # what is finished is closed
            half.close()
        with contextlib.suppress(OSError):
            partial.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems cannot; the file itself is safe by then.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(path: Path, error: OSError) -> EnvbuildError:
    """Return what to tell where an image cannot be written."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return RequestError(f"the directory `{path.parent}` does not exist", hint=_HINT)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP):
        return RequestError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT)
    if error.errno in _NO_SPACE:
        return MachineError(f"there is no space for `{path}`: {error.strerror}", hint=_HINT)
    return MachineError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT)
