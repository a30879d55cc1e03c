"""Cache: the contents of the store, their users, and what can be removed."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import MachineError, RequestError, did_you_mean
from envbuild.events import Note, task
from envbuild.lock.text import MAX_BYTES, load_file
from envbuild.store.gc_roots import Needs, Root, StoredRoot, add_root, find_roots, needs_of, remove_roots
from envbuild.store.inventory import Item, areas, items
from envbuild.store.prune import Pruned, prune
from envbuild.store.store import GRACE_S
from envbuild.store.verify import REPLACEABLE, Damage, Verified, remove_damaged, verify
from envbuild.system.files import read_input
from envbuild.workflows.gc_roots import identify, pinned_image, pinned_lock
from envbuild.workflows.settings import Settings

# Without locks, builds of other processes are noticed only by the layers that they used recently.
_WITHOUT_LOCKS_S = 7 * GRACE_S


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
    """Sizes of layers, blobs, files, scans and unfinished downloads, each blob once: those that are needed,
    needed by several, and needed by nothing.
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


def list_cache(settings: Settings) -> StoreListing:
    """Return the contents of a store; RequestError if it is not the user's, or a root cannot be read."""
    roots = find_roots(settings.store, identify)
    return StoreListing(items=tuple(items(settings.store)), roots=roots, needs=needs_of(roots))


def usage(settings: Settings) -> StoreUsage:
    """Return the size of a store; errors as `list_cache`."""
    listing = list_cache(settings)
    sizes: dict[str, int] = {}
    users: dict[str, set[str]] = {}
    for item in listing.items:
        if item.kind in ("layer", "blob", "file"):
            name = item.blob or item.id
            sizes[name] = item.size_bytes
            users.setdefault(name, set()).update(listing.needed_by(item))
        elif item.kind in ("scan", "leftover"):
            sizes[str(item.path)] = item.size_bytes
            users[str(item.path)] = set(listing.needed_by(item))
    labels = sorted({label for needing in users.values() for label in needing})
    rows = tuple(
        RootUsage(
            label=label,
            total_bytes=sum(sizes[name] for name, needing in users.items() if label in needing),
            own_bytes=sum(sizes[name] for name, needing in users.items() if needing == {label}),
        )
        for label in labels
    )
    return StoreUsage(
        areas=areas(settings.store),
        users=rows,
        needed_bytes=sum(sizes[name] for name, needing in users.items() if needing),
        shared_bytes=sum(sizes[name] for name, needing in users.items() if len(needing) > 1),
        free_bytes=sum(sizes[name] for name, needing in users.items() if not needing),
    )


def verify_cache(settings: Settings, *, repair: bool = False) -> StoreReport:
    """Read the whole store; with `repair` remove damaged items, once no build runs.

    RequestError: there is no store, or it is not the user's. MachineError: a file cannot be read or removed.
    """
    store = settings.store
    if not store.exists:
        # Not "all whole": the name may be misspelled.
        raise RequestError(
            f"there is no store at `{store.path}`",
            hint="the first build makes it; --store DIR or ENVBUILD_STORE names another",
        )
    if not repair:
        return _verify(settings, repair=False)
    with _alone(settings):
        return _verify(settings, repair=True)


def _alone(settings: Settings) -> AbstractContextManager[bool]:
    note = Note(text="waiting for builds that use the store")
    return settings.store.alone(lambda: settings.emit(note))


def _verify(settings: Settings, *, repair: bool) -> StoreReport:
    store = settings.store
    with task(settings.emit, "verify", f"what {store.path} holds") as running:
        try:
            verified = verify(store, advanced=running.advance)
            is_known = not any(damage.kind == "root" for damage in verified.damages)
            roots = find_roots(store, identify) if is_known else ()
            if repair:
                remove_damaged(store, verified.damages)
        except OSError as error:
            raise MachineError(
                f"`{error.filename}` cannot be read or removed: {error.strerror}", hint="see who may use it"
            ) from error
    return StoreReport(
        verified=verified,
        needs=needs_of(roots),
        specs={stored.root.label: stored.root.spec for stored in roots if stored.root.spec},
        repaired=repair,
    )


def prune_cache(
    settings: Settings, *, unused_s: float = GRACE_S, keep_bytes: int | None = None, dry_run: bool = False
) -> tuple[Pruned, tuple[StoredRoot, ...]]:
    """Remove what no root needs, once no build runs; also return the roots of images that are gone.

    RequestError: the store is not the user's, or a root cannot be read. MachineError: nothing could be
    removed.
    """
    store = settings.store
    if not store.exists:
        return Pruned(removed=(), freed_bytes=0, recently_used=(), failed=()), ()
    with contextlib.nullcontext(True) if dry_run else _alone(settings) as has_locks:
        if not has_locks:
            unused_s = max(unused_s, _WITHOUT_LOCKS_S)
            text = "the store's file system has no locks: what was used within a week stays"
            settings.emit(Note(text=text))
        roots = find_roots(store, identify)
        result = prune(store, needs_of(roots), unused_s=unused_s, keep_bytes=keep_bytes, dry_run=dry_run)
        if result.failed and not result.removed:
            _, why = result.failed[0]
            problem = f"nothing in the store `{store.path}` can be removed: {why}"
            raise MachineError(problem, hint="see who may write there")
        gone = tuple(stored for stored in roots if stored.state == "gone")
        if not dry_run:
            remove_roots(gone)
            if has_locks:
                store.sweep()
    return result, gone


def pin(path: Path, settings: Settings) -> Root:
    """Keep what an image or a lock needs until `unpin`; RequestError if `path` is neither."""
    if path.name.endswith((".yaml", ".yml")):
        lock_file = load_file(read_input(path, limit_bytes=MAX_BYTES), path)
        root = pinned_lock(path, lock_file, settings.store)
    elif path.is_file():
        root = pinned_image(path)
    else:
        raise RequestError(
            f"`{path}` is neither an image nor a lock", hint="name the file of one: `IMAGE.sif`, `LOCK.yaml`"
        )
    with settings.store.in_use():
        add_root(settings.store, root)
    return root


def unpin(path: Path, settings: Settings) -> tuple[Root, ...]:
    """Remove the pins of a path, and the root of an image that is gone or unreachable.

    RequestError: there are none.
    """
    roots = find_roots(settings.store, identify)
    pinned = [stored for stored in roots if stored.root.pinned or stored.state != "live"]
    wanted = [stored for stored in pinned if stored.root.path == str(path.absolute())]
    if not wanted:
        known = [stored.root.path for stored in pinned]
        raise RequestError(
            f"nothing named `{path}` is pinned",
            hint=did_you_mean(str(path), known) or "`envbuild cache ls` lists what is",
        )
    remove_roots(wanted)
    return tuple(stored.root for stored in wanted)
