"""The contents of a store and their users: what each needs, and what is damaged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from envbuild.store.gc_roots import Needs, StoredRoot
from envbuild.store.inventory import Item
from envbuild.store.verify import REPLACEABLE, Damage, Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreListing:
    """The contents of a store, and their users."""

    items: tuple[Item, ...]
    roots: tuple[StoredRoot, ...]
    """The users of the items."""
    needs: Needs
    """The needs of all roots that are not gone."""

    def needed_by(self, item: Item) -> tuple[str, ...]:
        """Return the labels of the roots that need an item, sorted."""
        return self.needs.get(item.id, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class RootUsage:
    """The bytes that one root needs, and those that no other root needs."""

    label: str
    total_bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """The size of a store, and of the parts that its roots need."""

    areas: dict[str, int]
    """Top directory → bytes."""
    users: tuple[RootUsage, ...]
    """Sorted by label."""
    needed_bytes: int
    shared_bytes: int
    free_bytes: int
    """Sizes of layers, blobs, files, images, scans and unfinished downloads, each blob once: those that are
    needed, needed by several, and needed by nothing.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """The damage in a store."""

    verified: Verified
    needs: Needs
    specs: dict[str, str]
    """Label of a root → the spec that builds it."""
    repaired: bool
    """Whether damaged items were removed."""

    @property
    def sound(self) -> bool:
        """Whether no damage is left."""
        return all(map(self.is_removed, self.verified.damages))

    def is_removed(self, damage: Damage) -> bool:
        """Return whether a damaged item was removed; only what can be built or fetched again is."""
        return self.repaired and damage.kind in REPLACEABLE

    def needed_by(self, damage: Damage) -> tuple[str, ...]:
        """Return the labels of the roots that need a damaged item, sorted."""
        names = (damage.id, *damage.keys)
        return tuple(sorted({label for name in names for label in self.needs.get(name, ())}))


def usage_of(listing: StoreListing, areas: dict[str, int]) -> StoreUsage:
    """Return the size of a store with some contents; `areas` are the sizes of its top directories."""
    sizes: dict[str, int] = {}
    users: dict[str, set[str]] = {}
    for item in listing.items:
        if item.kind in ("layer", "blob", "file"):
            name = item.blob or item.id
            sizes[name] = item.size_bytes
            users.setdefault(name, set()).update(listing.needed_by(item))
        elif item.kind in ("image", "scan", "leftover"):
            sizes[str(item.path)] = item.size_bytes
            users[str(item.path)] = set(listing.needed_by(item))
    total: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for name, needing in users.items():
        total.update(dict.fromkeys(needing, sizes[name]))
        own.update(dict.fromkeys(needing, sizes[name] if len(needing) == 1 else 0))
    rows = tuple(
        RootUsage(label=label, total_bytes=total[label], own_bytes=own[label]) for label in sorted(total)
    )
    return StoreUsage(
        areas=areas,
        users=rows,
        needed_bytes=sum(sizes[name] for name, needing in users.items() if needing),
        shared_bytes=sum(sizes[name] for name, needing in users.items() if len(needing) > 1),
        free_bytes=sum(sizes[name] for name, needing in users.items() if not needing),
    )
