"""Reads files with limits, writes them whole or not at all, copies and hashes them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path

import envbuild
from envbuild.errors import EnvbuildError, Location, MachineError, RequestError, did_you_mean
from envbuild.system.leftovers import own_name, sweep
from envbuild.system.links import real_path
from envbuild.system.redaction import redact_text

# Limit of envbuild's own files.
NOTE_LIMIT_BYTES = 64 << 20

_CHUNK_BYTES = 1024 * 1024
_COPY_BYTES = 16 * 1024 * 1024
_SYSTEM_CONFIGURATION = Path("/etc/envbuild")

_READABLE = "check that it exists, and that you may read it"
_WRITABLE = "name a file in a directory of yours"
HINT_SETTINGS = "put a file there that you may read, or remove it"
"""Hint for a file that is found by its place, not named."""
_ROOM = "free some space, or name another place"


class IrregularError(OSError):
    """A path is not a regular file; ``strerror`` says which kind it is."""


class TooLargeError(ValueError):
    """A file is longer than its reader accepts."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; IrregularError if it is not a regular file."""
    # By an opener, so that it keeps its name.
    return open(path, "rb", opener=lambda name, _: _open_regular(name))


def _open_regular(path: Path | str) -> int:
    # Not blocking: the path may be a named pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        problem = "a directory, not a file" if stat.S_ISDIR(mode) else "not a regular file"
        raise IrregularError(errno.EINVAL, problem)
    return descriptor


def read_small(path: Path, *, limit_bytes: int) -> bytes:
    """Read a whole file of envbuild's; TooLargeError if it exceeds the limit."""
    with open_regular(path) as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise TooLargeError(f"it is larger than {limit_bytes} bytes")
    return content


def make_directory(path: Path, *, mode: int = 0o755) -> None:
    """Make a directory and its parents unless they exist, with this mode whatever the umask."""
    try:
        # With its final mode: others must not be able to write to it even for a moment.
        path.mkdir(mode)
    except FileNotFoundError:
        make_directory(path.parent, mode=mode)
        path.mkdir(mode, exist_ok=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)


def open_input(path: Path, *, at: Location | None = None, hint: str | None = None) -> BufferedReader:
    """Open a file that a user named `at` a place; RequestError if it cannot be opened or is not a file.

    `hint` is used if there is neither such a file nor one with a similar name.
    """
    shown = redact_text(str(path))  # it may be meant as an address, with a password
    try:
        return open_regular(path)
    except FileNotFoundError:
        hint = neighbour_hint(path) or hint or "name one that is there"
        raise RequestError(f"there is no file `{shown}`", at=at, hint=hint) from None
    except IrregularError as error:
        raise RequestError(f"`{shown}` is {error.strerror}", at=at, hint=hint or "name a file") from None
    except (OSError, ValueError) as error:
        raise RequestError(f"`{shown}` cannot be read: {_reason(error)}", at=at, hint=_READABLE) from None


def read_input(path: Path, *, limit_bytes: int, at: Location | None = None, hint: str | None = None) -> bytes:
    """Read a whole file that a user named; RequestError as of `open_input`, or if it is too large."""
    shown = redact_text(str(path))
    with open_input(path, at=at, hint=hint) as file:
        try:
            content = file.read(limit_bytes + 1)
        except OSError as error:
            problem = f"`{shown}` cannot be read: {_reason(error)}"
            raise RequestError(problem, at=at, hint=_READABLE) from None
    if len(content) > limit_bytes:
        problem = f"`{shown}` is too large: more than {limit_bytes} bytes"
        raise RequestError(problem, at=at, hint="name another file, or make it shorter")
    return content


def is_below(path: Path, directory: Path) -> bool:
    """Return whether a path, symbolic links followed, lies below a directory."""
    return real_path(path).is_relative_to(real_path(directory))


def exists(path: Path) -> bool:
    """Return whether a path exists, as far as we may see; never raises, as `Path.exists` may."""
    return os.path.exists(path)  # noqa: PTH110


def is_directory(path: Path) -> bool:
    """Return whether there is a directory at a path; never raises, as `Path.is_dir` may."""
    return os.path.isdir(path)  # noqa: PTH112


def is_writable_directory(path: Path) -> bool:
    """Return whether a path is a directory in which we can make files."""
    return is_directory(path) and os.access(path, os.W_OK | os.X_OK)


def list_directory(path: Path) -> tuple[str, ...]:
    """Return the names in a directory, sorted; none if there is no such directory."""
    try:
        return tuple(sorted(entry.name for entry in path.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        problem = f"the directory `{path}` cannot be read: {_reason(error)}"
        raise RequestError(problem, hint=_READABLE) from None


@contextlib.contextmanager
def atomic_file(
    path: Path,
    *,
    mode: int = 0o666,
    check: Callable[[], None] = lambda: None,
    create: Callable[[Path], bool] = lambda _: False,
) -> Iterator[int]:
    """Yield a new file, open to read and write, that replaces `path` when the block ends without an error.

    `mode` is subject to the umask. `check` is called last; an error of it leaves `path` as it is. `create`
    may make the empty file at a path, with properties that only a new file can get, and returns whether it
    did. Anything at `path` except a regular file is an OSError.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if path.exists() and not path.is_file():
        # Replacing /dev/null or a named pipe is never meant.
        raise PermissionError(errno.EPERM, "it is not a regular file")
    # Shortened, so that it stays within the limit of file names.
    before, after = f".{os.fsdecode(os.fsencode(path.name)[:100])}.", ".partial"
    sweep(path.parent, before=before, after=after)
    partial = path.parent / f"{before}{own_name()}{after}"
    try:
        is_made = create(partial)
        new = os.O_NOFOLLOW if is_made else os.O_CREAT | os.O_EXCL
        file = os.open(partial, os.O_RDWR | os.O_CLOEXEC | new, mode)
        try:
            if is_made:
                # Another program made it with 0666 under our umask.
                allowed = stat.S_IMODE(os.fstat(file).st_mode)
                os.fchmod(file, mode & (allowed | (allowed & 0o444) >> 2))
            yield file
            os.fsync(file)
        finally:
            # Before it gets its name: a file that is open for writing cannot be executed.
            os.close(file)
        check()
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    # Some network file systems cannot; the file itself is safe by then.
    with contextlib.suppress(OSError):
        sync(path.parent)


def write_atomically(path: Path, data: bytes, *, hint: str = _WRITABLE) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    A symbolic link is followed; an existing file keeps its mode. RequestError: the place cannot be written,
    and the `hint` says what helps. MachineError: the disk is full or broken.
    """
    target = real_path(path)
    try:
        with atomic_file(target) as file:
            if target.exists():
                os.fchmod(file, stat.S_IMODE(target.stat().st_mode))
            write_at(file, data, 0)
    except OSError as error:
        raise _unwritable(path, error, hint) from None


def write_new(path: Path, data: bytes, *, parents: bool = False, mode: int = 0o666) -> None:
    """Write a file that must not exist yet, perhaps with its parents; errors as `write_atomically`.

    `mode` is subject to the umask.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        # Does not follow links; of two simultaneous commands one fails.
        stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")
    except FileExistsError as error:
        problem = f"`{error.filename}` already exists"
        raise RequestError(problem, hint="nothing is overwritten: name another file") from None
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with stream:
            stream.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def check_can_write(directory: Path, *, hint: str = _WRITABLE) -> None:
    """Raise a RequestError if no file can be written in a directory, before any work."""
    if not is_directory(directory):
        raise RequestError(f"there is no directory `{directory}`", hint=hint)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{directory}`", hint=hint)


def _unwritable(path: Path, error: OSError, hint: str = _WRITABLE) -> EnvbuildError:
    problem = f"`{path}` cannot be written: {_reason(error)}"
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError):
        return RequestError(problem, hint=hint)
    return MachineError(problem, hint=_ROOM)


def sync(path: Path) -> None:
    """Make a file or a directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(error: OSError) -> bool:
    """Return whether an error means that space or a quota is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def what_is_full(path: Path) -> str:
    """Return what a full file system lacks: ``space`` or ``inodes`` (one per file)."""
    try:
        return "inodes" if free_inodes(path) == 0 else "space"
    except OSError:
        return "space"


def free_bytes(directory: Path) -> int:
    """Return how many bytes this user can still write in a directory, quotas aside."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def free_inodes(directory: Path) -> int | None:
    """Return how many files and directories this user can still make in a directory, quotas aside.

    None if its file system has no limit of its own, and reports 0 in all, as Btrfs does (statvfs(3)).
    """
    status = os.statvfs(directory)
    return status.f_favail if status.f_files else None


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


def is_there(path: Path) -> bool:
    """Return whether a file of settings exists, or may exist in a directory that this user cannot enter.

    A link counts, wherever it leads: its reader reports that it leads nowhere. A file of the machine's in a
    closed directory is an error of its reader, too: nothing is known of what it requires. One of the user's
    counts as absent, such as in the home directory of another account.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return settings_homes()[-1] in path.parents
    return True


def environment_paths(variable: str) -> tuple[Path, ...]:
    """Return the paths that an environment variable lists; none if it is not set."""
    return tuple(Path(part) for part in os.environ.get(variable, "").split(os.pathsep) if part)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _own_data() -> Path:
    """Return the directory of envbuild's data: in the package, or at the top of a checkout."""
    package = Path(envbuild.__file__).parent
    packaged = package / "data"
    return packaged if packaged.is_dir() else package.parent


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a regular file by one write, which those of other processes do not mix with.

    The file is made if it does not exist. OSError: it cannot be opened or written, or is not a regular file.
    """
    with _open_to_append(path, os.O_CREAT) as descriptor:
        if os.write(descriptor, line + b"\n") != len(line) + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def check_can_append(path: Path) -> None:
    """Raise the OSError with which `append_line` would end, as far as that shows without writing."""
    try:
        with _open_to_append(path):
            pass
    except FileNotFoundError:
        if path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK):
            return
        raise


@contextlib.contextmanager
def _open_to_append(path: Path, more_flags: int = 0) -> Iterator[int]:
    # Without waiting: a pipe without a reader would never open.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | more_flags
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise IrregularError(errno.EINVAL, "it is a symbolic link", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IrregularError(errno.EINVAL, "it is not a regular file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def neighbour_hint(path: Path, suffix: str = "") -> str | None:
    """Return ``did you mean `x`?`` for a file beside a missing one, of a similar name and this suffix.

    Of a link it is what the link leads to, which is not there.
    """
    with contextlib.suppress(OSError, ValueError):
        if path.is_symlink():
            return f"it is a link to `{path.readlink()}`: make that, or remove the link"
        names = [entry.name for entry in path.parent.iterdir()]
        return did_you_mean(path.name, [name for name in names if name.endswith(suffix)])
    return None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def sha256(path: Path | str) -> str:
    """Return the hex digest of a file's bytes, 64 characters."""
    digest = hashlib.sha256()
    # Unbuffered: for the many small files of a layer, a buffer costs more than the rest.
    descriptor = _open_regular(path)
    try:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def copy(source: Path, target: Path) -> None:
    """Copy a file's bytes, sharing them with the original if the file system can."""
    with source.open("rb") as reading, target.open("wb") as writing:
        size_bytes = os.fstat(reading.fileno()).st_size
        copy_range(reading.fileno(), 0, size_bytes, writing.fileno(), 0)


# Errors of copy_file_range for file systems between which it cannot copy.
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_REFLINK_BYTES = 4096


def copy_range(
    source: int,
    start: int,
    size: int,
    target: int,
    offset: int,
    advanced: Callable[[int], None] = lambda _: None,
) -> None:
    """Copy `size` bytes of an open file into another, by reference if their file system can.

    `start` and `offset` are the places in source and target; `advanced` is called with the number of bytes
    of each copied piece.
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


def read_range(source: int, start: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of an open file from `start` on in pieces; OSError if it has become shorter."""
    end = start + size
    while start < end:
        piece = os.pread(source, min(_CHUNK_BYTES, end - start), start)
        if not piece:
            raise OSError(errno.EIO, "a file became shorter while it was read")
        yield piece
        start += len(piece)


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
    """Write bytes at a place of an open file."""
    view = memoryview(content)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count


@contextlib.contextmanager
def unchanged(*paths: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that raises a RequestError if a file is not the one that it was before the block.

    It raises the same in place of another error of the block: parts of two files look like a damaged one.
    """
    before = {path: signature(path) for path in paths}

    def check() -> None:
        for path, status in before.items():
            if signature(path) != status:
                problem = f"`{path.name}` was replaced or changed while it was read"
                raise RequestError(problem, at=Location(path=path), hint="run it again")

    try:
        yield check
    except EnvbuildError:
        check()
        raise


def signature(path: Path) -> list[int]:
    """Return the fields of a file's status that any change of it alters; empty if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
