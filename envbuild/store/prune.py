"""Take away what nobody needs, while others build, install and prune in the same store.

No lock guards it: network file systems have none that can be relied on. What
is needed is asked again before each removal when pins have come or gone; what
a build is about to use it has pinned and made young first; and a record goes
before its blob, so that nobody finds half of a layer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuild.store.inventory import Item, items
from envbuild.store.pins import DIRECTORY, Needs
from envbuild.store.store import Store
from envbuild.system import clock
from envbuild.system.removal import remove

# A blob comes before its record; what failed builds said is looked at later than what they made; and
# without its note a build only looks once more.
_LEAST_S = {"blob": 3600.0, "log": 7 * 86_400.0, "leftover": 86_400.0}
_WORTH_TELLING = ("layer", "blob", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was, or would be, taken away.

    Attributes
    ----------
    removed : tuple of Item
        From the longest unused on; each as large as what it gives back: a blob that another layer still
        names gives nothing.
    freed_bytes : int
        What that is together.
    young : tuple of Item
        Layers, blobs and files that nobody needs, and that were used too lately.
    refused : tuple of (Item, str)
        What could not be removed, and why.
    """

    removed: tuple[Item, ...]
    freed_bytes: int
    young: tuple[Item, ...]
    refused: tuple[tuple[Item, str], ...]


@dataclass(slots=True, kw_only=True)
class _Pruning:
    store: Store
    needs_now: Callable[[], Needs]
    unused_s: float
    dry_run: bool
    now_s: float = field(default_factory=clock.epoch_s)
    needs: Needs = field(init=False)
    seen: frozenset[tuple[str, int]] = field(init=False)
    left: Counter[str] = field(default_factory=Counter)
    blobs: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    def count(self, found: Sequence[Item]) -> None:
        """Note how many layers name each blob, and which file that is now."""
        self.left.update(item.blob for item in found if item.blob)
        self.blobs = {blob: self._file(blob) for blob in self.left}

    def look(self) -> None:
        # In this order: a pin that comes between the two is seen the next time.
        self.seen = self._pins()
        self.needs = self.needs_now()

    def is_young(self, item: Item, used_s: float) -> bool:
        return self.now_s - used_s < max(self.unused_s, _LEAST_S.get(item.kind, 0.0))

    def is_needed(self, item: Item) -> bool:
        if item.kind in ("layer", "blob"):
            return item.id in self.needs.keys or item.blob in self.needs.blobs
        if item.kind == "file":
            return item.id in self.needs.files
        # Every scan speaks of a blob; one of a blob that is here is of use.
        return item.kind == "scan" and self.left[f"sha256:{item.id}"] > 0

    def remove(self, item: Item) -> int | None:
        """Remove one; return the bytes that it gave back, or None where it is needed after all."""
        if not self.dry_run and self._pins() != self.seen:
            self.look()
        if self.is_needed(item):
            return None
        last = not item.blob or self.left[item.blob] == 1
        if not self.dry_run:
            if item.kind != "file" and self.is_young(item, item.path.lstat().st_mtime):
                return None  # somebody has just begun to use it
            remove(item.path)
            # Another file by now: a build has just published the same bytes under a key of its own.
            if item.kind == "layer" and last and self._file(item.blob) == self.blobs[item.blob]:
                self.store.blob_path(item.blob).unlink(missing_ok=True)
        if item.blob:
            self.left[item.blob] -= 1
        return item.size_bytes if last else 0

    def _file(self, blob: str) -> tuple[int, int] | None:
        try:
            status = self.store.blob_path(blob).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _pins(self) -> frozenset[tuple[str, int]]:
        """Return what changes with each pin that comes, goes or is written anew."""
        directory = self.store.root / DIRECTORY
        try:
            with os.scandir(directory) as found:
                entries = {(entry.name, entry.inode()) for entry in found}
            return frozenset({*entries, (".", directory.stat().st_mtime_ns)})
        except FileNotFoundError:
            return frozenset()


def prune(
    store: Store,
    needs_now: Callable[[], Needs],
    *,
    unused_s: float,
    keep_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove what nobody needs.

    Parameters
    ----------
    needs_now : callable
        What is needed at the time of the call.
    unused_s : float
        Leave what was used within so many seconds.
    keep_bytes : int, optional
        Stop as soon as what remains of layers, files and leftovers is no more than this.
    dry_run : bool
        Change nothing.

    Raises
    ------
    EnvbuildError
        What `needs_now` raises; nothing more is removed then.
    """
    work = _Pruning(store=store, needs_now=needs_now, unused_s=unused_s, dry_run=dry_run)
    work.look()
    found = items(store)
    work.count(found)
    total = _total(found)
    free = [item for item in found if item.kind == "scan" or not work.is_needed(item)]
    young = [item for item in free if item.kind in _WORTH_TELLING and work.is_young(item, item.used_s)]
    removed: list[Item] = []
    refused: list[tuple[Item, str]] = []
    freed = 0
    # Scans last: which blobs are left is known then.
    for item in sorted(free, key=lambda item: (item.kind == "scan", item.used_s, item.kind, item.id)):
        if work.is_young(item, item.used_s):
            continue
        if keep_bytes is not None and total - freed <= keep_bytes:
            break
        try:
            given = work.remove(item)
        except FileNotFoundError:
            continue  # another prune was faster
        except OSError as error:
            refused.append((item, f"{error.filename or item.path}: {error.strerror}"))
            continue
        if given is not None:
            removed.append(replace(item, size_bytes=given))
            freed += given
    return Pruned(removed=tuple(removed), freed_bytes=freed, young=tuple(young), refused=tuple(refused))


def forget(paths: list[Path]) -> None:
    """Remove the records of pins whose images are gone; one that another has removed is no error."""
    for path in paths:
        path.unlink(missing_ok=True)


def _total(found: list[Item]) -> int:
    blobs = {item.blob: item.size_bytes for item in found if item.blob}
    return sum(blobs.values()) + sum(item.size_bytes for item in found if not item.blob)
