"""Stores of other accounts, whose layers are used where they are.

Trust is by ownership: a layer counts if nobody but root, the store's owner and the reader can change its file
or a directory above it. Nothing is locked or written there. A layer's file stays open from the moment it is
found, so that its owner can prune the store meanwhile.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.store.opening import MARKER, not_opened, open_parents, rulers
from envbuild.store.records import LayerRecord, blob_name, read_record, record_name
from envbuild.system import host
from envbuild.system.descriptors import close, open_directory, open_file, through

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """The squashfs of a layer, opened.

    Attributes
    ----------
    path : Path
        Where this process reads it, whatever becomes of its name.
    """

    path: Path
    size_bytes: int


class Upstream:
    """A store that is only read.

    Parameters
    ----------
    path : Path
        Its directory.
    owner : int
        User id of the account that it must belong to.

    Raises
    ------
    RequestError
        It is no store, does not belong to the owner, or others can change or replace it.
    MachineError
        It cannot be read.
    """

    def __init__(self, path: Path, owner: int) -> None:
        self.path = path
        self.owner = owner
        self._blobs: dict[str, Blob] = {}
        self._closed: set[Path] = set()
        try:
            descriptor = open_directory(path)
        except OSError as error:
            raise not_opened(path, error) from error
        self._root = through(descriptor)
        try:
            self._check()
        except OSError as error:
            close(descriptor)
            raise not_opened(path, error) from error
        except EnvbuildError:
            close(descriptor)
            raise

    def _check(self) -> None:
        status = self._root.stat()
        if status.st_uid != self.owner:
            problem = f"the upstream store `{self.path}` belongs to {host.user(status.st_uid)},"
            raise RequestError(
                f"{problem} not to {host.user(self.owner)}",
                hint="if you trust that account, name it as `owner` under `upstreams` in site.yaml",
            )
        if not (self._root / MARKER).is_file():
            raise RequestError(
                f"the upstream `{self.path}` is no store of this version",
                hint="name the directory that its owner builds with (--store)",
            )
        directory = self._root.readlink()
        opened = list(open_parents(directory, self.owner))
        if not self._is_closed(status):
            opened.append(directory)
        if opened:
            problem = f"others can change or replace the upstream store `{self.path}`"
            raise RequestError(
                f"{problem}: they can write to `{opened[-1]}`",
                hint="its owner can move it below directories that only they and root can write to",
            )

    def _is_closed(self, status: os.stat_result) -> bool:
        """Return whether only root, the owner and this user can write to a file or directory."""
        trusted = (*rulers(), self.owner, os.geteuid())
        return status.st_uid in trusted and not status.st_mode & _OTHERS_WRITE

    def get(self, key: str) -> LayerRecord | None:
        """Return a finished layer of a key, and keep its blob open; None where there is none that counts."""
        name = record_name(key)
        try:
            if not self.is_private(name):
                return None
            record = read_record(self._root / name)
            return record if record.key == key and self._open_blob(record) else None
        except (OSError, ValueError, RequestError):
            return None

    def blob(self, digest: str) -> Path | None:
        """Return the path of a blob that `get` has opened."""
        blob = self._blobs.get(digest)
        return blob.path if blob else None

    def is_private(self, name: str) -> bool:
        """Return whether a path below it is a file that nobody else can write to or replace.

        Raises
        ------
        OSError
            It is not there, or cannot be looked at.
        """
        status = (self._root / name).lstat()
        return (
            stat.S_ISREG(status.st_mode) and self._is_closed(status) and self._are_closed(Path(name).parent)
        )

    def _open_blob(self, record: LayerRecord) -> bool:
        blob = self._blobs.get(record.blob)
        if blob is None:
            name = Path(blob_name(record.blob))
            if not self._are_closed(name.parent):
                return False
            descriptor = open_file(self._root / name)
            status = os.fstat(descriptor)
            if not (stat.S_ISREG(status.st_mode) and self._is_closed(status)):
                close(descriptor)
                return False
            blob = self._blobs[record.blob] = Blob(path=through(descriptor), size_bytes=status.st_size)
        return blob.size_bytes == record.size_bytes

    def _are_closed(self, name: Path) -> bool:
        for directory in (name, *name.parents[:-1]):
            if directory not in self._closed:
                status = (self._root / directory).lstat()
                if not (stat.S_ISDIR(status.st_mode) and self._is_closed(status)):
                    return False
                self._closed.add(directory)
        return True
