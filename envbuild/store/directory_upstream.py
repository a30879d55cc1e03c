"""Stores of other accounts, whose layers are read in place.

Trust is by ownership: a layer counts if only root, the store's owner and the reader can change its file or a
directory above it. Nothing is locked or written there. The file of a layer stays open, so that the owner can
prune the store meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.errors import RequestError
from envbuild.formats import hint_for
from envbuild.store.opening import MARKER, format_of, not_opened
from envbuild.store.records import LayerRecord, blob_name, read_record, record_name
from envbuild.system import host
from envbuild.system.descriptors import close, descriptor_path, open_directory, open_file
from envbuild.system.files import list_directory
from envbuild.system.privacy import PrivateTree, parents_others_can_write

if TYPE_CHECKING:
    from envbuild.store.store import Store

_ANOTHER = (
    "name the directory that its owner builds with (--store): --upstream DIR, or `upstreams` in config.yaml"
)


class DirectoryUpstream:
    """An `Upstream`: a store that is only read, and belongs to one of the user ids `owners`.

    `root` is the path by which this process reaches it. RequestError: it is not a store, does not belong to
    an owner, or others can change or replace it.
    """

    def __init__(self, path: Path, owners: Collection[int]) -> None:
        self.path = path
        self._records: dict[str, LayerRecord] = {}
        self._blobs: dict[str, Path] = {}
        try:
            with contextlib.ExitStack() as opened:
                descriptor = open_directory(path)
                opened.callback(close, descriptor)
                self.root = descriptor_path(descriptor)
                self._tree = self._checked(owners)
                opened.pop_all()
        except FileNotFoundError as error:
            raise RequestError(f"there is no store `{path}`", hint=_ANOTHER) from error
        except OSError as error:
            raise not_opened(path, error, _ANOTHER) from error

    def _checked(self, owners: Collection[int]) -> PrivateTree:
        status = self.root.stat()
        if status.st_uid not in owners:
            raise RequestError(
                f"the store `{self.path}` belongs to {host.user(status.st_uid)}",
                hint="if you trust that account, name it as `owner` under `upstreams` in config.yaml",
            )
        if not (self.root / MARKER).is_file():
            other_format = format_of(list_directory(self.root))
            if other_format is not None:
                problem = f"the store `{self.path}` cannot be used: {other_format}"
                raise RequestError(problem, hint=hint_for(other_format, _ANOTHER))
            raise RequestError(f"`{self.path}` is not a store", hint=_ANOTHER)
        directory, tree = self.root.readlink(), PrivateTree(self.root, [status.st_uid])
        opened = list(parents_others_can_write(directory, [status.st_uid]))
        if not tree.only_trusted_can_write(status):
            opened.append(directory)
        if opened:
            problem = f"others can change or replace the store `{self.path}`"
            raise RequestError(
                f"{problem}: they can write to `{opened[-1]}`",
                hint="its owner can move it below directories that only they and root can write to",
            )
        return tree

    def is_private(self, name: str) -> bool:
        """Return whether a path in it is a file that others can neither write to nor replace."""
        return self._tree.is_private(name)

    def get(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key and keep its blob open; None if there is none that counts."""
        if key in self._records:
            return self._records[key]
        name = record_name(key)
        try:
            if not self.is_private(name):
                return None
            record = read_record(self.root / name)
            if record.key != key or not self._open_blob(record):
                return None
        except (OSError, ValueError, RequestError) as error:
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise  # this process has too many open files
            return None
        self._records[key] = record
        return record

    def fetch(self, key: str, store: Store, advanced: Callable[[int], None]) -> bool:  # noqa: ARG002
        """Return True: the blob is open already."""
        return True

    def blob(self, digest: str) -> Path | None:
        """Return the path of a blob that `get` has opened; it is valid in this process only."""
        return self._blobs.get(digest)

    def _open_blob(self, record: LayerRecord) -> bool:
        if record.blob not in self._blobs:
            name = blob_name(record.blob)
            if not self.is_private(name):
                return False
            descriptor = open_file(self.root / name)
            self._blobs[record.blob] = descriptor_path(descriptor)
        status = self._blobs[record.blob].stat()
        return stat.S_ISREG(status.st_mode) and status.st_size == record.size_bytes
