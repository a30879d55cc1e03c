"""The needs of an image or a lock in the store, which `cache prune` leaves."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.lock.model import Lock, LockFile
from envbuild.plan.model import BuildPlan, input_files
from envbuild.store.gc_roots import Root
from envbuild.store.store import Store
from envbuild.system.files import exists
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


def pinned_image(path: Path) -> Root:
    """Return the root that keeps all inputs of an image, read from the image alone."""
    with ImageFile.open(path) as image:
        return Root(
            path=str(path.absolute()),
            pinned=True,
            digest=image.manifest.digest,
            keys=_keys(image.plan),
            files=_files(image.lock),
        )


def pinned_lock(path: Path, file: LockFile, store: Store) -> Root:
    """Return the root that keeps a lock's files, and the layers that were last planned from it."""
    files = _files(*file.locks)
    keys: tuple[str, ...] = ()
    try:
        plan = BuildPlan.from_json(last_plan(store, file.name) or "")
    except ValueError:
        plan = None
    if plan is not None:
        inputs = {file.sha256 for layer in plan.layers for file in input_files(layer.step)}
        keys = _keys(plan) if inputs <= set(files) else ()
    return Root(path=str(path.absolute()), pinned=True, keys=keys, files=files)


def identify(path: Path) -> str | None:
    """Return the digest of the image at a path; None if there is none. OSError: it cannot be determined.

    An image whose manifest has another format is known by its digest, too: what it needs stays.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        with ImageFile.open(path) as image:
            return image.manifest_digest
    except RequestError:
        if exists(path):
            with path.open("rb"):
                return None  # it can be read, but is not an image, or a broken one
        return None


def _keys(plan: BuildPlan) -> tuple[str, ...]:
    return tuple(sorted({layer.key for layer in plan.layers}))


def _files(*locks: Lock) -> tuple[str, ...]:
    return tuple(sorted({pin.sha256 for lock in locks for pin in lock.pins}))
