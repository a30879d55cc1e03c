"""Cache: the contents of the store, their users, and what can be removed."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

from envbuild.errors import MachineError, RequestError, did_you_mean
from envbuild.events import Note, task
from envbuild.lock.text import MAX_BYTES, load_file
from envbuild.store.gc_roots import Root, StoredRoot, add_root, find_roots, needs_of, remove_roots
from envbuild.store.inventory import areas, items
from envbuild.store.prune import Pruned, prune
from envbuild.store.store import GRACE_S
from envbuild.store.usage import StoreListing, StoreReport, StoreUsage, usage_of
from envbuild.store.verify import remove_damaged, verify
from envbuild.system.files import read_input
from envbuild.workflows.gc_roots import identify, pinned_image, pinned_lock
from envbuild.workflows.settings import Settings

# Without locks, builds of other processes are noticed only by the layers that they used recently.
_WITHOUT_LOCKS_S = 7 * GRACE_S


def list_cache(settings: Settings) -> StoreListing:
    """Return the contents of a store; RequestError if it is not the user's, or a root cannot be read."""
    roots = find_roots(settings.store, identify)
    return StoreListing(items=tuple(items(settings.store)), roots=roots, needs=needs_of(roots))


def usage(settings: Settings) -> StoreUsage:
    """Return the size of a store; errors as `list_cache`."""
    return usage_of(list_cache(settings), areas(settings.store))


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
            # Of roots that cannot be read, the damages say so.
            roots: tuple[StoredRoot, ...] = ()
            with contextlib.suppress(RequestError):
                roots = find_roots(store, identify)
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
        return Pruned(removed=(), freed_bytes=0, recently_used=(), newer=(), failed=()), ()
    with contextlib.nullcontext(True) if dry_run else _alone(settings) as has_locks:
        if not has_locks:
            unused_s = max(unused_s, _WITHOUT_LOCKS_S)
            text = "the store's file system has no locks: what was used within a week stays"
            settings.emit(Note(text=text))
        if not dry_run:
            # Late: no other command on a store needs the scheduler.
            from envbuild.workflows.submit import release_ended  # noqa: PLC0415

            release_ended(settings)
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
    of_image = [stored for stored in pinned if stored.root.path == str(path.absolute())]
    if not of_image:
        known = [stored.root.path for stored in pinned]
        raise RequestError(
            f"nothing named `{path}` is pinned",
            hint=did_you_mean(str(path), known) or "`envbuild cache ls` lists what is",
        )
    remove_roots(of_image)
    return tuple(stored.root for stored in of_image)
