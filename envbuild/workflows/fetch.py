"""Fetch: make the locked files exist here, and keep them elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.lock.model import Lock, all_pins
from envbuild.plan.model import InputFile, Layer
from envbuild.resolve.fetch import HINT_EXPORT, FileOrigins, export, fetch, origins_of, pins_to_export
from envbuild.resolve.files import FileCache, Pin
from envbuild.system.files import exists
from envbuild.workflows.arguments import check_outside_store, check_room
from envbuild.workflows.lock import lock_spec, resolve_context
from envbuild.workflows.plan import needed_pins
from envbuild.workflows.settings import Settings

_ANOTHER = "name another directory with --to DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The number and size of the files that were kept."""

    files: int
    size_bytes: int


def fetch_spec(spec: Path, settings: Settings, *, to: Path, sources: Sequence[Path] = ()) -> Fetched:
    """Lock a spec if needed, and keep every locked file in a directory.

    RequestError: the directory cannot be written. MachineError: the disk is full or fails.
    """
    check_outside_store(to, settings.store.path, hint=_ANOTHER)
    _check_writable(to)
    locked = lock_spec(spec, settings, sources=sources)
    pins = all_pins(locked.lock)
    with settings.store.in_use():
        cache = fetch_pins(pins, origins_of(locked.resolved), settings, sources=sources, offline=False)
        new = pins_to_export(pins, to)
        check_room(
            to,
            sum(pin.size_bytes for pin in new),
            settings.emit,
            inodes=len(new) + 1,
            copied_from=cache.root,
            hint=HINT_EXPORT,
        )
        export(pins, cache, to)
    return Fetched(files=len(pins), size_bytes=sum(pin.size_bytes for pin in pins))


def _check_writable(directory: Path) -> None:
    """Raise a RequestError if files cannot be written to a directory, which need not exist."""
    absolute = directory.absolute()
    there = next(place for place in (absolute, *absolute.parents) if exists(place))
    if not there.is_dir():
        raise RequestError(f"`{there}` is not a directory", hint=_ANOTHER)
    if not os.access(there, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{there}`", hint=_ANOTHER)


def fetch_pins(
    pins: Iterable[Pin],
    origins: FileOrigins,
    settings: Settings,
    *,
    sources: Sequence[Path],
    offline: bool,
) -> FileCache:
    """Make files exist in the store's cache, verified; return the cache."""
    with resolve_context(settings, sources=sources, offline=offline) as context:
        fetch(pins, origins, context)
    return context.files


def fetch_inputs(
    layers: Iterable[Layer],
    lock: Lock,
    origins: FileOrigins,
    settings: Settings,
    *,
    work: Path,
    sources: Sequence[Path],
    offline: bool,
) -> Callable[[InputFile], Path]:
    """Fetch the locked files that layers are built from; return a function that locates them (`locator`)."""
    pins = needed_pins(layers, all_pins(lock))
    fetch_pins(pins, origins, settings, sources=sources, offline=offline)
    return locator(pins, settings, work)


def locator(pins: Iterable[Pin], settings: Settings, work: Path) -> Callable[[InputFile], Path]:
    """Return a function that locates files of the store's cache for other programs.

    They may need copies in the directory `work`.
    """
    by_digest = {pin.sha256: pin for pin in pins}
    cache = FileCache(settings.store.directory("files"))
    return lambda file: settings.store.for_programs(cache.path(by_digest[file.sha256]), work)
