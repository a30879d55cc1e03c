"""Compose: finished layers put side by side become an image."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError, RequestError
from envbuild.image.model import Manifest, Part
from envbuild.image.sif import looks_like_sif, read_manifest
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


def check_target(path: Path, *, keep: Sequence[Path]) -> None:
    """Refuse a place where no image can or should be written, before any work is done.

    Parameters
    ----------
    keep : sequence of Path
        Files that an image must never replace: the spec and its lock.

    Raises
    ------
    RequestError
        It is a directory, lies in none that can be written, or is a file that is no SIF.
    """
    hint = "name another file with -o IMAGE.sif"
    directory = path.parent
    if path.is_dir() or not path.name:
        raise RequestError(f"`{path}` is a directory, not a file", hint=hint)
    if not directory.is_dir():
        raise RequestError(
            f"there is no directory `{directory}` for `{path.name}`", hint="make it, or " + hint
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{directory}`", hint=hint)
    if path.exists():
        replaced = any(other.exists() and path.samefile(other) for other in keep)
        if replaced or not path.is_file() or not looks_like_sif(path):
            raise RequestError(f"`{path}` is there already and is no image: it is left alone", hint=hint)


def is_image(path: Path, manifest: Manifest) -> bool:
    """Return whether a file is already this image, as far as its own story tells."""
    try:
        return path.is_file() and read_manifest(path) == manifest
    except EnvbuildError:
        return False
