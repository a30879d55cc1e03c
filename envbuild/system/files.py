"""Files of the user: read with limits, listed in order, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path
from time import time_ns

import envbuild
from envbuild.errors import Location, MachineError, RequestError, did_you_mean

# Of what the house notes for itself.
NOTE_LIMIT_BYTES = 64 << 20

_CHUNK_BYTES = 1024 * 1024
_COPY_BYTES = 16 * 1024 * 1024
_SYSTEM_CONFIGURATION = Path("/etc/envbuild")


_READABLE = "see that it is there, and may be read by you"
_WRITABLE = "name a file in a directory of yours"
_ROOM = "free some space, or name another place"


class IrregularError(OSError):
    """What is at a path is no regular file; ``strerror`` says what it is."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file that somebody named, for reading.

    Raises
    ------
    OSError, ValueError
        It is not there or cannot be read; `IrregularError` where it is no regular file.
    """
    return os.fdopen(_open_regular(path), "rb")


def _open_regular(path: Path | str) -> int:
    # Not blocking: a named pipe must not hang us before it is recognised.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a directory, not a file" if stat.S_ISDIR(mode) else "not a regular file"
        raise IrregularError(errno.EINVAL, what)
    return descriptor


def file_named(text: str) -> Path:
    """Return the path of a file that is to be written, which a text names.

    Raises
    ------
    RequestError
        It ends in a slash, and there is no such directory: a file of that name would come to be.
    """
    if text.endswith("/") and not is_directory(Path(text)):
        hint = "make it and name a file in it, or leave the slash out"
        raise RequestError(f"`{text}` is the name of a directory, and a file is to be written", hint=hint)
    return Path(text)


def read_small(path: Path, *, limit_bytes: int) -> bytes:
    """Read a whole file that is one of ours, or should be.

    Raises
    ------
    OSError
        It is not there, cannot be read, or is no regular file.
    ValueError
        It is longer than one of ours can be.
    """
    with open_regular(path) as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"it is larger than {limit_bytes} bytes")
    return content


def make_directory(path: Path, *, mode: int = 0o755) -> None:
    """Make a directory, and those above it, unless they are there; of one mode, whatever the umask.

    Raises
    ------
    OSError
        It cannot be made, or something else is in its place.
    """
    try:
        # At once: in a directory that others can write to for a moment, they could leave theirs.
        path.mkdir(mode)
    except FileNotFoundError:
        make_directory(path.parent, mode=mode)
        path.mkdir(mode, exist_ok=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)


def read_input(path: Path, *, limit_bytes: int, at: Location | None = None, hint: str | None = None) -> bytes:
    """Read a whole file that a user named.

    Parameters
    ----------
    limit_bytes : int
        A longer file is refused.
    at : Location, optional
        Where the file was named, for messages.
    hint : str, optional
        What to do when it is not there, nor another of nearly that name.

    Raises
    ------
    RequestError
        It is missing, no regular file, unreadable or too large.
    """
    try:
        stream = open_regular(path)
    except FileNotFoundError:
        raise RequestError(
            f"there is no file `{path}`",
            at=at,
            hint=_neighbour_hint(path) or hint or "name one that is there",
        ) from None
    except IrregularError as error:
        raise RequestError(f"`{path}` is {error.strerror}", at=at, hint=hint or "name a file") from None
    except (OSError, ValueError) as error:
        raise RequestError(f"`{path}` cannot be read: {_reason(error)}", at=at, hint=_READABLE) from None
    with stream:
        try:
            content = stream.read(limit_bytes + 1)
        except OSError as error:
            raise RequestError(f"`{path}` cannot be read: {_reason(error)}", at=at, hint=_READABLE) from None
    if len(content) > limit_bytes:
        problem = f"`{path}` is too large: more than {limit_bytes} bytes"
        raise RequestError(problem, at=at, hint="name another file, or make it shorter")
    return content


def is_below(path: Path, directory: Path) -> bool:
    """Return whether a path, symbolic links followed, lies below a directory."""
    try:
        below = path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError):
        below = False
    return below


def exists(path: Path) -> bool:
    """Return whether there is something at a path that we may see; never raises."""
    return _mode(path) is not None


def is_directory(path: Path) -> bool:
    """Return whether there is a directory at a path; never raises."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def list_directory(path: Path) -> tuple[str, ...]:
    """Return the names in a directory, sorted; none where there is no such directory.

    Raises
    ------
    RequestError
        It cannot be read.
    """
    try:
        names = tuple(sorted(entry.name for entry in path.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        names = ()
    except OSError as error:
        raise RequestError(
            f"the directory `{path}` cannot be read: {_reason(error)}", hint=_READABLE
        ) from None
    return names


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    A symbolic link is followed; an existing file keeps its mode.

    Raises
    ------
    RequestError
        It cannot be written here.
    MachineError
        The disk is full or broken.
    """
    target = path.resolve()
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as stream:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        temporary.replace(target)
        sync(target.parent)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise RequestError(f"`{path}` cannot be written: {_reason(error)}", hint=_WRITABLE) from None
    except OSError as error:
        raise MachineError(f"`{path}` cannot be written: {_reason(error)}", hint=_ROOM) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def what_is_full(path: Path) -> str:
    """Return what a full file system has no more of: space, or inodes, each of which is one file."""
    try:
        found = os.statvfs(path)
    except OSError:
        return "space"
    return "inodes" if found.f_files and not found.f_favail else "space"


def sync(path: Path) -> None:
    """Make a file or a directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, and the directories that lead to it.

    Raises
    ------
    RequestError
        It is there, or cannot be written here.
    MachineError
        The disk is full or broken.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # With O_EXCL no link is followed, and of two who come at once one is told.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError as error:
        what = path if error.filename == str(path) else error.filename
        raise RequestError(
            f"`{what}` is there already", hint="nothing is overwritten: name another file"
        ) from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise RequestError(f"`{path}` cannot be written: {_reason(error)}", hint=_WRITABLE) from None
    except OSError as error:
        raise MachineError(f"`{path}` cannot be written: {_reason(error)}", hint=_ROOM) from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise MachineError(f"`{path}` cannot be written: {_reason(error)}", hint=_ROOM) from None


def configuration_homes() -> tuple[Path, ...]:
    """Return the directories of the user, the machine and this program, in the order of search.

    Each may hold ``recipes/``, ``base-images/`` and ``sites/``.
    """
    return (*settings_homes(), _own_data())


def settings_homes() -> tuple[Path, ...]:
    """Return the directories of the user's and the machine's own settings, in the order of search."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    # Relative values are to be ignored (XDG Base Directory Specification).
    user = Path(configured) if configured.startswith("/") else _home() / ".config"
    return (user / "envbuild", _SYSTEM_CONFIGURATION)


def environment_paths(variable: str) -> tuple[Path, ...]:
    """Return the paths that an environment variable lists; none where it is not set."""
    return tuple(Path(part) for part in os.environ.get(variable, "").split(os.pathsep) if part)


def _mode(path: Path) -> int | None:
    # Unlike Path.exists, which raises where a directory may not be searched.
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return None


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _own_data() -> Path:
    """Return where our data lies: in the package when installed, at the repository's top in a checkout."""
    package = Path(envbuild.__file__).parent
    packaged = package / "data"
    return packaged if packaged.is_dir() else package.parent


def _neighbour_hint(path: Path) -> str | None:
    """Suggest a file of nearly the same name."""
    with contextlib.suppress(OSError, ValueError):
        return did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()])
    return None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def sha256(path: Path | str, over: threading.Event | None = None) -> str:
    """Return the hex digest of a file's bytes, 64 characters; empty where it was over before the end."""
    digest = hashlib.sha256()
    # Not buffered: of small files, of which a layer has many, a buffer costs more than all else.
    descriptor = _open_regular(path)
    try:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            if over is not None and over.is_set():
                return ""
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def copy(source: Path, target: Path) -> None:
    """Copy a file's bytes, sharing them with the original where the file system can."""
    with source.open("rb") as reading, target.open("wb") as writing:
        left = source.stat().st_size
        try:
            while left > 0 and (sent := os.copy_file_range(reading.fileno(), writing.fileno(), left)):
                left -= sent
        except OSError:
            reading.seek(0)
            writing.seek(0)
            writing.truncate()
            while chunk := reading.read(_CHUNK_BYTES):
                writing.write(chunk)


# What copy_file_range answers for two file systems, or for one of a kind, that it cannot copy between.
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_REFLINK_BYTES = 4096


def copy_range(
    source: int, start: int, size: int, target: int, offset: int, advanced: Callable[[int], None]
) -> None:
    """Copy a part of an open file into another, by reference where their file system can.

    Parameters
    ----------
    start, size, offset : int
        Where the part begins, its length, and where it goes, in bytes.
    advanced : callable
        Called with the number of bytes each time that so many were copied.

    Raises
    ------
    OSError
        The source cannot be read, or ends before; or the target cannot be written.
    """
    end = start + size
    while start < end:
        # Only whole blocks can be shared: the first piece ends where one begins.
        count = min(end - start, -start % _REFLINK_BYTES or _COPY_BYTES)
        copied = _copy_some(source, start, count, target, offset)
        if copied == 0:
            raise OSError(errno.EIO, "a file became shorter while it was copied")
        start, offset = start + copied, offset + copied
        advanced(copied)


def _copy_some(source: int, start: int, count: int, target: int, offset: int) -> int:
    try:
        return os.copy_file_range(source, target, count, start, offset)
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
    content = os.pread(source, min(count, _CHUNK_BYTES), start)
    write_at(target, content, offset)
    return len(content)


def write_at(file: int, content: bytes, offset: int) -> None:
    """Write bytes at a place of an open file.

    Raises
    ------
    OSError
        They cannot be written.
    """
    view = memoryview(content)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count


# A change so soon after a look may leave the times of a file as they were; some file systems count seconds.
_SETTLED_NS = 50_000_000
_COARSE_NS = 2_000_000_000


def signature(path: Path) -> list[int]:
    """Return the fields of a file's status that any change of it alters; empty if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def settled(was: Sequence[int]) -> bool:
    """Return whether any later change of a file shows in its signature: it has been there for a while."""
    if not was:
        return False
    coarse = was[4] % 1_000_000 == 0
    return time_ns() > was[4] + (_COARSE_NS if coarse else _SETTLED_NS)


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no space, or no more of a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
