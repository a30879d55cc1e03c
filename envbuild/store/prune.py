"""Removes what no root reaches; the caller holds the store (`Store.alone`)."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

from envbuild.store.gc_roots import Needs
from envbuild.store.inventory import Item, items, walk_files
from envbuild.store.store import Store
from envbuild.system.descriptors import with_real_paths
from envbuild.system.removal import remove

# People read the log of a failed build days later.
_LOGS_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Items that were, or would be, removed."""

    removed: tuple[Item, ...]
    """Least recently used first. `size_bytes` is what a removal frees: 0 if another layer names the blob."""
    freed_bytes: int
    recently_used: tuple[Item, ...]
    """Layers, blobs, files and images that nothing needs, but that were used recently."""
    newer: tuple[Item, ...]
    """Records of layers in a format to come, and blobs that they may name: they stay."""
    failed: tuple[tuple[Item, str], ...]
    """Items that could not be removed, and why."""


def prune(
    store: Store, needs: Needs, *, unused_s: float, keep_bytes: int | None = None, dry_run: bool = False
) -> Pruned:
    """Remove what nothing needs and nothing used for `unused_s` seconds, the least recently used first.

    Stop as soon as at most `keep_bytes` remain; with `dry_run`, remove nothing. A layer's record is removed
    before its blob, so that no process sees half of a layer.
    """
    stored, now_s = items(store), time.time()
    users = Counter(item.blob for item in stored if item.blob)
    # A blob counts once, however many layers name it.
    left_bytes = sum({item.blob or item.path: item.size_bytes for item in stored}.values())
    removed: list[Item] = []
    recently_used: list[Item] = []
    newer = [item for item in stored if item.kind == "newer"]
    if newer:
        newer += [item for item in stored if item.kind == "blob"]
    kept = {item.path for item in newer}
    failed: list[tuple[Item, str]] = []
    for item in sorted(stored, key=lambda item: (item.used_s, item.kind, item.id)):
        if item.id in needs or item.path in kept:
            continue
        if _age_s(item.used_s, now_s) < max(unused_s, _LOGS_S if item.kind == "log" else 0):
            recently_used += [item] if item.kind in ("layer", "blob", "file", "image") else []
            continue
        if keep_bytes is not None and left_bytes <= keep_bytes:
            break
        is_last = not item.blob or users[item.blob] == 1
        if not dry_run:
            try:
                used_s = max((status.st_mtime for _, status in walk_files(item.path)), default=0.0)
                if _age_s(used_s, time.time()) < unused_s:
                    continue  # used since it was listed
                remove(item.path)
                if item.kind == "layer" and is_last:
                    store.blob_path(item.blob).unlink(missing_ok=True)
            except OSError as error:
                failed.append(
                    (item, f"{with_real_paths(str(error.filename or item.path))}: {error.strerror}")
                )
                continue
        if item.blob:
            users[item.blob] -= 1
        removed.append(replace(item, size_bytes=item.size_bytes if is_last else 0))
        left_bytes -= removed[-1].size_bytes
    return Pruned(
        removed=tuple(removed),
        freed_bytes=sum(item.size_bytes for item in removed),
        recently_used=tuple(recently_used),
        newer=tuple(newer),
        failed=tuple(failed),
    )


def _age_s(used_s: float, now_s: float) -> float:
    return max(0.0, now_s - used_s)  # the clock may have been wrong
