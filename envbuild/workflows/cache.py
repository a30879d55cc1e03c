"""Cache: what the store holds, for whom, and what can go."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.errors import MachineError
from envbuild.events import Note
from envbuild.store.inventory import Item, areas, items
from envbuild.store.prune import Pruned, prune
from envbuild.store.roots import Needs, StoredRoot, find_roots, needs_of, remove_roots
from envbuild.store.store import GRACE_S
from envbuild.workflows.keeping import identify
from envbuild.workflows.settings import Settings

# Kinds of things that have no names for people: one, and several of them.
_SUMMED = {
    "scan": ("scan of a layer", "scans of layers"),
    "log": ("log of a build", "logs of builds"),
    "leftover": ("unfinished download", "unfinished downloads"),
}
# Where the file system has no locks, builds of other processes are told by what they used of late.
_WITHOUT_LOCKS_S = 7 * GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a store holds, and who needs what.

    Attributes
    ----------
    items : tuple of Item
        Layers, blobs, files and leftovers.
    roots : tuple of StoredRoot
        Who needs them.
    needs : Needs
        What those that are not gone need.
    """

    items: tuple[Item, ...]
    roots: tuple[StoredRoot, ...]
    needs: Needs

    def needed_by(self, item: Item) -> tuple[str, ...]:
        """Return the labels of what needs an item, sorted."""
        if item.kind == "file":
            return self.needs.files.get(item.id, ())
        return self.needs.keys.get(item.id, ())

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {
            "items": [
                {
                    "kind": item.kind,
                    "id": item.id,
                    "name": item.name,
                    "blob": item.blob or None,
                    "size_bytes": item.size_bytes,
                    "needed_by": list(self.needed_by(item)),
                }
                for item in self.items
            ],
            "roots": [root_data(stored) for stored in self.roots],
        }

    def to_text(self, *, files: bool) -> str:
        """Return lines for people: who needs something, then layers, then locked files if asked for."""
        lines = [f"{stored.state:<12}{stored.root.label}" for stored in self.roots]
        shown = [
            item for item in self.items if item.kind in ("layer", "blob") or (files and item.kind == "file")
        ]
        for item in shown:
            users = self.needed_by(item)
            needed = f"{len(users)}: {users[0]}" + (", …" if len(users) > 1 else "") if users else "nothing"
            short = item.id.removeprefix("sha256:")[:12]
            size = f"{item.size_bytes / 1e6:.1f}"
            lines.append(f"{item.kind:<6}{short}  {size:>8} MB  {item.name}  needed by {needed}")
        kept = [item for item in self.items if item.kind == "file"]
        if kept and not files:
            total = sum(item.size_bytes for item in kept)
            free = sum(not self.needed_by(item) for item in kept)
            lines.append(
                f"{len(kept)} locked files, {total / 1e6:.1f} MB, {free} needed by nothing (--files)"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How large a store is, and for whom.

    Attributes
    ----------
    areas : dict of str to int
        Top directory → bytes.
    users : tuple of dict
        ``label``, ``total_bytes`` of what it needs, and ``own_bytes`` that nothing else needs.
    needed_bytes, shared_bytes, free_bytes : int
        Of layers with their scans, blobs and files, each blob once: what is needed, the part of it that
        several need, and what nothing needs, unfinished downloads among it.
    """

    areas: dict[str, int]
    users: tuple[dict[str, Any], ...]
    needed_bytes: int
    shared_bytes: int
    free_bytes: int

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {
            "areas": self.areas,
            "users": list(self.users),
            "needed_bytes": self.needed_bytes,
            "shared_bytes": self.shared_bytes,
            "free_bytes": self.free_bytes,
        }

    def to_text(self) -> str:
        """Return lines for people."""
        lines = [f"{size / 1e6:>12.1f} MB  {name}/" for name, size in self.areas.items() if size]
        lines += [
            f"{user['total_bytes'] / 1e6:>12.1f} MB  {user['label']}"
            f" ({user['own_bytes'] / 1e6:.1f} MB for it alone)"
            for user in self.users
        ]
        lines.append(
            f"{self.needed_bytes / 1e6:>12.1f} MB  are needed, {self.shared_bytes / 1e6:.1f} MB of them by"
            f" more than one; {self.free_bytes / 1e6:.1f} MB by nothing"
        )
        return "\n".join(lines)


def root_data(stored: StoredRoot) -> dict[str, Any]:
    """Return a root as plain data, for JSON."""
    root = stored.root
    return {
        "path": root.path,
        "pinned": root.pinned,
        "state": stored.state,
        "digest": root.digest or None,
        "spec": root.spec or None,
        "layers": list(root.keys),
        "files": list(root.files),
    }


def list_cache(settings: Settings) -> Listing:
    """Return what a store holds; writes nothing.

    Raises
    ------
    RequestError
        It is no store of the user's, or a root in it cannot be read.
    """
    roots = find_roots(settings.store, identify)
    return Listing(items=tuple(items(settings.store)), roots=roots, needs=needs_of(roots))


def usage(settings: Settings) -> Usage:
    """Return how large a store is; writes nothing. Raises as `list_cache`."""
    listing = list_cache(settings)
    sizes: dict[str, int] = {}
    users: dict[str, set[str]] = {}
    for item in listing.items:
        if item.kind in ("layer", "blob", "file"):
            thing = item.blob or item.id
            sizes[thing] = item.size_bytes
            users.setdefault(thing, set()).update(listing.needed_by(item))
        elif item.kind in ("scan", "leftover"):
            # Behind layers and blobs; what was read of one goes with it.
            sizes[str(item.path)] = item.size_bytes
            users[str(item.path)] = users.get(f"sha256:{item.id}", set()) if item.kind == "scan" else set()
    labels = sorted({label for needing in users.values() for label in needing})
    rows = tuple(
        {
            "label": label,
            "total_bytes": sum(sizes[thing] for thing, needing in users.items() if label in needing),
            "own_bytes": sum(sizes[thing] for thing, needing in users.items() if needing == {label}),
        }
        for label in labels
    )
    return Usage(
        areas=areas(settings.store),
        users=rows,
        needed_bytes=sum(sizes[thing] for thing, needing in users.items() if needing),
        shared_bytes=sum(sizes[thing] for thing, needing in users.items() if len(needing) > 1),
        free_bytes=sum(sizes[thing] for thing, needing in users.items() if not needing),
    )


def prune_cache(
    settings: Settings, *, unused_s: float = GRACE_S, keep_bytes: int | None = None, dry_run: bool = False
) -> tuple[Pruned, tuple[StoredRoot, ...]]:
    """Remove what no root reaches, once no build runs; the second value are the roots of what is gone.

    Raises
    ------
    RequestError
        It is no store of the user's, or a root cannot be read, so that what it needs is not known.
    MachineError
        Nothing could be removed.
    """
    store, emit = settings.store, settings.emit
    if not store.exists:
        return Pruned(removed=(), freed_bytes=0, young=(), refused=()), ()

    def waiting() -> None:
        emit(Note(text="waiting for builds that use the store"))

    with contextlib.nullcontext(True) if dry_run else store.alone(waiting) as has_locks:
        if not has_locks:
            unused_s = max(unused_s, _WITHOUT_LOCKS_S)
            emit(Note(text="the store's file system has no locks: what was used within a week stays"))
        roots = find_roots(store, identify)
        result = prune(store, needs_of(roots), unused_s=unused_s, keep_bytes=keep_bytes, dry_run=dry_run)
        if result.refused and not result.removed:
            _, why = result.refused[0]
            problem = f"nothing in the store `{store.path}` can be removed: {why}"
            raise MachineError(problem, hint="see who may write there")
        gone = tuple(stored for stored in roots if stored.state == "gone")
        if not dry_run:
            remove_roots(gone)
            if has_locks:
                store.sweep()
    return result, gone


def removed_lines(pruned: Pruned, gone: Sequence[StoredRoot]) -> Iterator[str]:
    """Yield what was or would be removed, for people: what is of no layer or file is summed up."""
    for item in pruned.removed:
        if item.kind not in _SUMMED:
            short = item.id.removeprefix("sha256:")[:12]
            yield f"{item.kind} {short}  {item.size_bytes / 1e6:.1f} MB  {item.name}"
    for kind, (one, several) in _SUMMED.items():
        sizes = [item.size_bytes for item in pruned.removed if item.kind == kind]
        if sizes:
            what = one if len(sizes) == 1 else several
            yield f"{len(sizes)} {what}  {sum(sizes) / 1e6:.1f} MB"
    for stored in gone:
        yield f"is gone: {stored.root.label}"


def to_json(data: Any) -> str:  # noqa: ANN401  # plain data
    """Return plain data as JSON for people and programs."""
    return json.dumps(data, indent=2, ensure_ascii=False)
