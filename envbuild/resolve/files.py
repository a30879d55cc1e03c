"""The cache of locked files, by content.

``files/sha256/ab/<hex>/<file name>``: the digest decides; tools need the name. A file gets its name only
after its bytes match the pin and are flushed. A killed download leaves an ``.unverified-*`` file.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from envbuild.errors import MachineError
from envbuild.lock.model import DebPin, PythonPin, RootPin
from envbuild.system import host, locks
from envbuild.system.descriptors import with_real_paths
from envbuild.system.files import free_bytes, make_directory, sha256, sync

Pin = DebPin | PythonPin | RootPin

_SHA256 = re.compile(r"[0-9a-f]{64}")


class CachedFile(Protocol):
    """A file that the cache can hold: that of a pin, or of a distribution that is not locked yet."""

    @property
    def file_name(self) -> str:
        """Its name."""

    @property
    def directory(self) -> str:
        """The directory of its kind (``wheels``), below one that `export` filled."""

    @property
    def sha256(self) -> str:
        """Hex digest, 64 characters."""

    @property
    def size_bytes(self) -> int | None:
        """Its length; None if that is not known."""


class WrongBytes(Exception):
    """A file is not the locked one."""


class FileCache:
    """Locked files below one directory, which is created with the first file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, file: CachedFile) -> Path:
        """Return the path of a file, which need not exist."""
        digest, name = file.sha256, file.file_name
        if not _SHA256.fullmatch(digest) or not name or "/" in name or name.startswith("."):
            raise ValueError(f"not a file's digest and name: {digest!r} {name!r}")
        return self.root / "sha256" / digest[:2] / digest / name

    @contextlib.contextmanager
    def adding(self, file: CachedFile) -> Iterator[Path]:
        """Yield a path to write; when the block ends, the file joins the cache if its bytes are right.

        If it does not, WrongBytes is raised and nothing is kept.
        """
        final = self.path(file)
        try:
            make_directory(final.parent)
            handle, name = tempfile.mkstemp(prefix=".unverified-", dir=self.root)
            os.close(handle)
            part = Path(name)
            try:
                yield part
                check(part, file)
                part.chmod(0o444)
                sync(part)
                part.replace(final)
            finally:
                part.unlink(missing_ok=True)
            sync(final.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> MachineError:
        root = with_real_paths(str(self.root))
        problem = f"the cache `{root}` cannot be written: {error.strerror or error}"
        return MachineError(problem, hint="`--store DIR` names another place")

    def add_continued(self, file: CachedFile, write: Callable[[Path], None]) -> None:
        """Let `write` complete a path, which keeps its bytes if that fails, and add it to the cache.

        A later run, or another process, which waits meanwhile, goes on from there. `write` compares digests.
        """
        final = self.path(file)
        try:
            make_directory(final.parent)
            while not self._continued(file, final, write):
                pass
            sync(final.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def missing_bytes(self, file: CachedFile) -> int:
        """Return how much of a file is still to be fetched by `add_continued`."""
        with contextlib.suppress(OSError):
            return max((file.size_bytes or 0) - self._part(file).stat().st_size, 0)
        return file.size_bytes or 0

    def _part(self, file: CachedFile) -> Path:
        return self.root / f".unverified-{file.sha256}"

    def _continued(self, file: CachedFile, final: Path, write: Callable[[Path], None]) -> bool:
        part = self._part(file)
        lock = locks.open_lock(part)
        try:
            if not locks.wait_for_lock(lock, shared=False):
                # A file that another process may write, too, is of no use.
                part = self.root / f"{part.name}-{host.name()}-{os.getpid()}"
            elif not locks.is_at(part, lock):
                return False  # another process has finished it
            if not (final.exists() and is_whole(final, file)):
                write(part)
                part.chmod(0o444)
                sync(part)
                part.replace(final)
            part.unlink(missing_ok=True)
            return True
        finally:
            os.close(lock)

    def check_room(self, needed: int) -> None:
        """Raise a MachineError if files that are to be fetched need more bytes than are free."""
        try:
            make_directory(self.root)
            free = free_bytes(self.root)
        except OSError:
            return  # `adding` gives the reason
        if needed > free:
            free_mb = f"{free / 1e6:.0f} MB are free in `{self.root}`"
            hint = "`--store DIR` names another place; `envbuild cache prune` may free some space"
            raise MachineError(f"{needed / 1e6:.0f} MB are to be fetched, and {free_mb}", hint=hint)


def apart(file: CachedFile) -> str:
    """Return the path below a directory of a file whose name another one has, too."""
    return f"{file.directory}/{file.sha256[:12]}/{file.file_name}"


def check(path: Path, file: CachedFile) -> None:
    """Compare a path with a file; WrongBytes if length or digest differ, or it cannot be read."""
    expected_bytes = file.size_bytes
    try:
        size_bytes, digest = path.stat().st_size, ""
        if expected_bytes in (None, size_bytes):
            digest = sha256(path)
    except OSError as error:
        raise WrongBytes(f"it cannot be read: {error.strerror or error}") from error
    if expected_bytes not in (None, size_bytes):
        raise WrongBytes(f"it has {size_bytes} bytes, {expected_bytes} are locked")
    if digest != file.sha256:
        raise WrongBytes(f"its sha256 is {digest[:12]}…, {file.sha256[:12]}… is locked")


def is_whole(path: Path, file: CachedFile) -> bool:
    """Return whether a file is the locked one."""
    try:
        check(path, file)
    except WrongBytes:
        return False
    return True
