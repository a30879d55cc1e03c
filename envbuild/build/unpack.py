"""Unpack untrusted archives without writing outside one directory.

Every directory on the way is opened on its own and never through a link, so no order of entries leads
outside. Absolute paths, ``..``, device files, two entries for one path, and anything over the limits are
rejected.

Source: OCI image specification 1.1 (layers and whiteouts), POSIX pax, tar(5).
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import BuildError
from envbuild.store.tree import DEEPEST
from envbuild.system import process
from envbuild.system.tarmembers import MAX_ROOT_BYTES, MAX_ROOT_ENTRIES, UnsafeArchiveError

_CHUNK_BYTES = 1 << 20
_MAX_LINKTEXT = 4095
_MAX_NAME_BYTES = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
# Every runtime mounts these; tools that pack a root often include them.
_RUNTIMES_OWN = frozenset(
    f"dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLimits:
    """Limits on the size of a root."""

    size_bytes: int = MAX_ROOT_BYTES
    """Limit both on the sum of all files and on the decompressed archive."""
    entries: int = MAX_ROOT_ENTRIES
    """Number of files, directories and links."""
    depth: int = DEEPEST
    """Number of nested directories."""


class Writer:
    """Writes a root into an empty directory, layer by layer; the limits are for all layers together."""

    def __init__(self, tree: Path, limits: RootLimits) -> None:
        self._root = os.open(tree, _DIRECTORY)
        self._limits = limits
        self._size_bytes = 0
        self._count = 0
        self._modes: dict[str, int] = {}  # of directories; set at the end, since some are read-only
        self._entries: set[str] = set()  # of this layer
        self._touched: set[str] = set()  # `_entries` and their parents

    def close(self) -> None:
        """Give the directories their modes, the deepest first."""
        try:
            for path in sorted(self._modes, key=lambda path: path.count("/"), reverse=True):
                with self._directory(path) as descriptor:
                    os.fchmod(descriptor, self._modes[path])
        finally:
            os.close(self._root)

    def next_layer(self) -> None:
        """Begin a layer, whose entries replace those below."""
        self._entries, self._touched = set(), set()

    def directory(self, name: str, mode: int) -> None:
        """Add a directory."""
        path = self._claim(name)
        if not path:
            return
        with self._parent(path) as (parent, last):
            if not _is_directory(parent, last):
                self._remove(parent, last)
                os.mkdir(last, 0o700, dir_fd=parent)
        self._modes[path] = (mode & 0o1777) | 0o700

    def file(self, name: str, mode: int, size_bytes: int, content: BinaryIO) -> None:
        """Add a regular file of `size_bytes` bytes; set-id bits are left out."""
        path = self._claim(name)
        self._size_bytes += size_bytes
        if size_bytes < 0 or self._size_bytes > self._limits.size_bytes:
            raise UnsafeArchiveError(f"`{name}`: more than {self._limits.size_bytes >> 20} MiB in all")
        with (
            self._place(path, name) as (parent, last),
            os.fdopen(os.open(last, _NEW_FILE, 0o600, dir_fd=parent), "wb") as target,
        ):
            left = size_bytes
            while left > 0 and (chunk := content.read(min(left, _CHUNK_BYTES))):
                target.write(chunk)
                left -= len(chunk)
            if left:
                raise UnsafeArchiveError(f"`{name}` ends too early")
            os.fchmod(target.fileno(), mode & 0o777)

    def symlink(self, name: str, target: str) -> None:
        """Add a symbolic link; an absolute target is inside the root."""
        self._link(self._claim(name), name, target)

    def _link(self, path: str, name: str, target: str) -> None:
        _check_text(target, name)
        if not target or len(target.encode()) > _MAX_LINKTEXT:
            raise UnsafeArchiveError(f"the link `{name}` has no target that can be")
        depth = 0 if target.startswith("/") else path.count("/")
        for part in target.split("/"):
            depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
            if depth < 0:
                raise UnsafeArchiveError(f"the link `{name}` leads out of the root: `{target}`")
        with self._place(path, name) as (parent, last):
            os.symlink(target, last, dir_fd=parent)

    def hardlink(self, name: str, target: str) -> None:
        """Add a second name of an existing file."""
        path, other = self._claim(name), self._clean(target)
        with self._parent(other, make=False) as (there, source):
            if not other or _kind(there, source) not in (stat.S_IFREG, stat.S_IFLNK):
                raise UnsafeArchiveError(f"`{name}` is a second name of `{target}`, which is no file here")
            if path == other or other.startswith(f"{path}/"):
                raise UnsafeArchiveError(f"`{name}` is a second name of itself, or of what is below it")
            if _kind(there, source) == stat.S_IFLNK:
                # A relative target depends on the link's own path.
                self._link(path, name, os.readlink(source, dir_fd=there))
                return
            with self._place(path, name) as (parent, last):
                try:
                    os.link(source, last, src_dir_fd=there, dst_dir_fd=parent, follow_symlinks=False)
                except OSError as error:
                    raise UnsafeArchiveError(
                        f"`{name}` cannot be a name of `{target}`: {error.strerror}"
                    ) from None

    def special(self, name: str) -> None:
        """Skip a device that every runtime mounts; reject any other device, pipe or socket."""
        if self._claim(name) not in _RUNTIMES_OWN:
            raise UnsafeArchiveError(f"`{name}` is a device, pipe or socket")

    def whiteout(self, name: str) -> bool:
        """Remove what a whiteout (``.wh.NAME``) hides in the layers below; return whether the name is one."""
        before, _, last = name.rstrip("/").rpartition("/")
        if not last.startswith(_WHITEOUT):
            return False
        path = self._claim(name)
        parent = path.rpartition("/")[0]
        if last == _OPAQUE:
            self._uncover(parent)
            return True
        hidden = last.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise UnsafeArchiveError(f"`{name}` hides nothing that can be")
        target = self._clean(f"{before}/{hidden}" if before else hidden)
        if target not in self._touched:
            with self._parent(target, make=False) as (descriptor, last_part):
                if self._remove(descriptor, last_part):
                    self._forget(target)
        return True

    def _uncover(self, path: str) -> None:
        """Remove the content that layers below have in a directory."""
        with self._directory(path) as descriptor:
            for child in sorted(os.listdir(descriptor)):  # noqa: PTH208  # of a descriptor
                below = f"{path}/{child}".lstrip("/")
                if below not in self._touched:
                    if self._remove(descriptor, child):
                        self._forget(below)
                elif below not in self._entries or _is_directory(descriptor, child):
                    self._uncover(below)

    def _forget(self, path: str) -> None:
        for directory in [other for other in self._modes if other == path or other.startswith(f"{path}/")]:
            del self._modes[directory]

    def _claim(self, name: str) -> str:
        if process.is_shutting_down():
            raise KeyboardInterrupt
        path = self._clean(name)
        self._count += 1
        if self._count > self._limits.entries:
            raise UnsafeArchiveError(f"`{name}`: more than {self._limits.entries} entries")
        if path in self._entries:
            raise UnsafeArchiveError(f"`{name}` is there twice")
        self._entries.add(path)
        touched = path
        while touched not in self._touched:
            self._touched.add(touched)
            touched = touched.rpartition("/")[0]
        return path

    def _clean(self, name: str) -> str:
        _check_text(name, name)
        if name.startswith("/"):
            raise UnsafeArchiveError(f"`{name}` is an absolute path")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise UnsafeArchiveError(f"`{name}` leads upwards")
        if len(parts) > self._limits.depth or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
            raise UnsafeArchiveError(f"`{name[:80]}…` is too long or too deep")
        return "/".join(parts)

    @contextmanager
    def _place(self, path: str, name: str) -> Iterator[tuple[int, str]]:
        """Yield the parent and name of a new entry, after removing what a layer below has there."""
        if not path:
            raise UnsafeArchiveError(f"`{name}` takes the place of the root")
        with self._parent(path) as (parent, last):
            if path in self._modes and any(entry.startswith(f"{path}/") for entry in self._entries):
                raise UnsafeArchiveError(f"`{name}` takes the place of a directory of its own layer")
            if self._remove(parent, last):
                self._forget(path)
            yield parent, last

    @contextmanager
    def _parent(self, path: str, *, make: bool = True) -> Iterator[tuple[int, str]]:
        before, _, last = path.rpartition("/")
        with self._directory(before, make=make) as descriptor:
            yield descriptor, last

    @contextmanager
    def _directory(self, path: str, *, make: bool = False) -> Iterator[int]:
        descriptor, done = os.dup(self._root), ""
        try:
            for part in path.split("/") if path else ():
                done = f"{done}/{part}".lstrip("/")
                if make and _kind(descriptor, part) is None:
                    os.mkdir(part, 0o700, dir_fd=descriptor)
                    self._modes[done] = 0o755
                try:
                    deeper = os.open(part, _DIRECTORY, dir_fd=descriptor)
                except OSError:
                    raise UnsafeArchiveError(
                        f"`{path}` leads through a link or what is no directory"
                    ) from None
                os.close(descriptor)
                descriptor = deeper
            yield descriptor
        finally:
            os.close(descriptor)

    def _remove(self, parent: int, name: str) -> bool:
        """Remove an entry if it exists; return whether it was a directory."""
        kind = _kind(parent, name)
        if kind == stat.S_IFDIR:
            shutil.rmtree(name, dir_fd=parent)
        elif kind is not None:
            os.unlink(name, dir_fd=parent)
        return kind == stat.S_IFDIR


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnsafeArchiveError(f"{name!r} holds what is not UTF-8") from None
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise UnsafeArchiveError(f"{name!r} holds a control character")


def _kind(parent: int, name: str) -> int | None:
    """Return the type of a path (``stat.S_IFDIR``, …), links not followed; None if it does not exist."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _is_directory(parent: int, name: str) -> bool:
    return _kind(parent, name) == stat.S_IFDIR


def refused(archive: str, error: Exception) -> BuildError:
    """Return the error for an archive that is rejected."""
    return BuildError(
        f"`{archive}` is not used: {error}",
        hint="nothing of it is kept; a root is packed as `tar` does it below the root's own directory",
    )
