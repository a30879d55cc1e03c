"""Compose: finished layers put side by side become an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.image.model import Manifest, Part
from envbuild.image.sif import read_manifest
from envbuild.image.sifwriter import LOCK, PLAN, DataObject, write_sif


def compose(
    path: Path,
    manifest: Manifest,
    parts: Sequence[tuple[Part, Path]],
    *,
    lock: str,
    plan: str,
    advanced: Callable[[int], None],
) -> None:
    """Write an image: whole, or not at all.

    Parameters
    ----------
    parts : sequence of (Part, Path)
        Each partition and the squashfs that it is copied from, the root first.
    lock, plan : str
        Canonical texts that travel in the image.
    advanced : callable
        Called with the number of bytes each time that so many were copied.
    """
    data = (
        DataObject(name=LOCK, content=lock.encode()),
        DataObject(name=PLAN, content=plan.encode(), kind="json"),
    )
    write_sif(
        path, architecture=manifest.architecture, manifest=manifest, parts=parts, data=data, advanced=advanced
    )


def is_image(path: Path, manifest: Manifest) -> bool:
    """Return whether a file is already this image, as far as its own story tells."""
    try:
        return path.is_file() and read_manifest(path) == manifest
    except EnvbuildError:
        return False
