"""What builds and installations tell the store of what they need, so that `cache prune` leaves it."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Emit, Note
from envbuild.image.model import Manifest
from envbuild.image.sif import LOCK, PLAN, read_data, read_manifest
from envbuild.lock.model import Lock
from envbuild.lock.text import load
from envbuild.plan.model import BuildPlan
from envbuild.store.pins import Pin, hold_build, release, write_pin
from envbuild.store.plans import last_plan
from envbuild.store.store import Store
from envbuild.system.files import exists
from envbuild.workflows.fetch import all_pins


def hold(plan: BuildPlan, lock: Lock, store: Store) -> Path | None:
    """Say that a build of this process is about to use a plan's layers; see `hold_build`."""
    return hold_build(store, keys=_keys(plan), files=_files(lock))


def keep_image(
    path: Path,
    manifest: Manifest,
    plan: BuildPlan,
    lock: Lock,
    *,
    spec: Path,
    store: Store,
    emit: Emit,
    held: Path | None,
) -> None:
    """Record what an image that was built needs, in place of the build's own pin.

    Parameters
    ----------
    held : Path or None
        What `hold` returned, if it was called.
    """
    here = path.absolute()
    pin = Pin(
        kind="image",
        name=str(here),
        under=str(here.parent),
        digest=manifest.digest,
        spec=str(spec.absolute()),
        keys=_keys(plan),
        blobs=_blobs(manifest),
        files=_files(lock),
    )
    _write(store, pin, emit, held)


def pin_of_image(image: Path) -> Pin:
    """Return the pin that keeps all that an image was made from, read from the image alone.

    Raises
    ------
    RequestError
        It is no image of ours.
    """
    manifest = read_manifest(image)
    lock = load(read_data(image, LOCK), image)
    return Pin(
        kind="image",
        name=str(image.absolute()),
        asked=True,
        digest=manifest.digest,
        keys=_keys_of(read_data(image, PLAN)),
        blobs=_blobs(manifest),
        files=_files(lock),
    )


def pin_of_lock(path: Path, lock: Lock, store: Store) -> Pin:
    """Return the pin that keeps a lock's files, and the layers that were last planned from it."""
    files = _files(lock)
    keys: tuple[str, ...] = ()
    with contextlib.suppress(ValueError, RecursionError, RequestError):
        text = last_plan(store, lock.name) or ""
        if set(_inputs_of(json.loads(text))) <= set(files):
            keys = _keys_of(text)
    return Pin(kind="lock", name=str(path.absolute()), asked=True, keys=keys, files=files)


def identify(pin: Pin) -> str | None:
    """Return the digest of the image that a pin's file or installation is now; None where there is none.

    Raises
    ------
    OSError
        That cannot be told: it lies where we may not look.
    """
    path = Path(pin.name)
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return read_manifest(path).digest
    except RequestError:
        if exists(path):
            with path.open("rb"):
                return None  # it can be read, and is no image, or a broken one
        return None


def _write(store: Store, pin: Pin, emit: Emit, held: Path | None) -> None:
    """Record a pin, and only then take back the one that held its place."""
    try:
        write_pin(store, pin)
    except EnvbuildError:
        # Who may only read a store can still compose and install from it.
        text = f"the store does not note that it is needed by {pin.name}: it cannot be written"
        emit(Note(text=text))
    release(held)


def _blobs(manifest: Manifest) -> tuple[str, ...]:
    layers = manifest.file_system.layers if manifest.file_system else ()
    return tuple(layer.digest for layer in layers)


def _keys(plan: BuildPlan) -> tuple[str, ...]:
    return tuple(layer.key for layer in plan.layers)


def _files(lock: Lock) -> tuple[str, ...]:
    return tuple(pin.sha256 for pin in all_pins(lock))


def _keys_of(plan: bytes | str) -> tuple[str, ...]:
    """Return the keys of a plan as an image or the store keeps it.

    Raises
    ------
    RequestError
        It is none.
    """
    try:
        keys = tuple(str(layer["key"]) for layer in json.loads(plan)["layers"])
        if not all(re.fullmatch(r"sha256:[0-9a-f]{64}", key) for key in keys):
            raise ValueError("a key that is no digest")
        return keys
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(
            "its plan cannot be read",
            hint="the image was changed, or another version made it: build it anew from its spec",
        ) from error


def _inputs_of(value: object) -> list[str]:
    """Return the digests of all locked files that a plan names."""
    if isinstance(value, dict):
        own = [str(value["sha256"])] if value.keys() == {"name", "sha256"} else []
        return own + [digest for below in value.values() for digest in _inputs_of(below)]
    if isinstance(value, list):
        return [digest for below in value for digest in _inputs_of(below)]
    return []
