"""The needs of an image or a lock in the store, which `cache prune` leaves."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError
from envbuild.image.model import Manifest
from envbuild.image.sif import LOCK, PLAN, read_data, read_manifest
from envbuild.lock.model import Lock
from envbuild.lock.text import load
from envbuild.plan.model import BuildPlan, input_files
from envbuild.store.gc_roots import Root
from envbuild.store.store import Store
from envbuild.system.files import exists
from envbuild.workflows.fetch import all_pins
from envbuild.workflows.plan import last_plan


def root_of_build(image: Path, manifest: Manifest, plan: BuildPlan, lock: Lock, spec: Path) -> Root:
    """Return the root of an image that was built."""
    return Root(
        path=str(image.absolute()),
        digest=manifest.digest,
        spec=str(spec.absolute()),
        keys=_keys(plan),
        files=_files(lock),
    )


def pinned_image(image: Path) -> Root:
    """Return the root that keeps all inputs of an image, read from the image alone."""
    try:
        plan = BuildPlan.from_json(read_data(image, PLAN).decode())
    except ValueError as error:
        raise RequestError(
            f"the plan in `{image.name}` cannot be read: {error}",
            hint="the image was changed, or another version made it: build it anew from its spec",
        ) from error
    return Root(
        path=str(image.absolute()),
        pinned=True,
        digest=read_manifest(image).digest,
        keys=_keys(plan),
        files=_files(load(read_data(image, LOCK), image)),
    )


def pinned_lock(path: Path, lock: Lock, store: Store) -> Root:
    """Return the root that keeps a lock's files, and the layers that were last planned from it."""
    files = _files(lock)
    keys: tuple[str, ...] = ()
    try:
        plan = BuildPlan.from_json(last_plan(store, lock.name) or "")
    except ValueError:
        plan = None
    if plan is not None:
        inputs = {file.sha256 for layer in plan.layers for file in input_files(layer.step)}
        keys = _keys(plan) if inputs <= set(files) else ()
    return Root(path=str(path.absolute()), pinned=True, keys=keys, files=files)


def identify(image: Path) -> str | None:
    """Return the digest of the image at a path; None if there is none. OSError: it cannot be determined."""
    try:
        image.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return read_manifest(image).digest
    except RequestError:
        if exists(image):
            with image.open("rb"):
                return None  # it can be read, but is not an image, or a broken one
        return None


def _keys(plan: BuildPlan) -> tuple[str, ...]:
    return tuple(sorted({layer.key for layer in plan.layers}))


def _files(lock: Lock) -> tuple[str, ...]:
    return tuple(sorted(pin.sha256 for pin in all_pins(lock)))
