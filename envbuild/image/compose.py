"""Compose: finished layers put side by side become an image."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.image.contents import file_systems, unreadable_layer
from envbuild.image.half import Half
from envbuild.image.model import Manifest, Part
from envbuild.image.packages import read_packages
from envbuild.image.sbom import sbom
from envbuild.image.sif import looks_like_sif, read_data, read_manifest, read_sif
from envbuild.image.sifwriter import LOCK, PLAN, SBOM, DataObject, write_sif
from envbuild.image.squashfs import Squashfs
from envbuild.lock.model import Lock
from envbuild.lock.text import load


def compose(
    path: Path,
    manifest: Manifest,
    parts: Sequence[tuple[Part, Path]],
    *,
    lock: str,
    plan: str,
    bill: bytes,
    advanced: Callable[[int], None],
    half: Half | None = None,
) -> None:
    """Write an image: whole, or not at all.

    Parameters
    ----------
    parts : sequence of (Part, Path)
        Each partition and the squashfs that it is copied from, the root first.
    lock, plan : str
        Canonical texts that travel in the image.
    bill : bytes
        What `bill_of` returned of them.
    advanced : callable
        Called with the number of bytes each time that so many were copied.
    half : Half, optional
        As in `write_sif`.
    """
    data = (
        DataObject(name=LOCK, content=lock.encode()),
        DataObject(name=PLAN, content=plan.encode(), kind="json"),
        DataObject(name=SBOM, content=bill, kind="sbom"),
    )
    write_sif(
        path,
        architecture=manifest.architecture,
        manifest=manifest,
        parts=parts,
        data=data,
        advanced=advanced,
        half=half,
    )


def bill_of(lock: Lock, blobs: Sequence[Path]) -> bytes:
    """Return the bill of materials of an image that is put together from squashfs files, the root first.

    Raises
    ------
    MachineError
        One cannot be read, or is damaged.
    """
    try:
        with contextlib.ExitStack() as stack:
            files = [(stack.enter_context(blob.open("rb")), blob.stat().st_size) for blob in blobs]
            return sbom(lock, read_packages([Squashfs(file, 0, size) for file, size in files]))
    except (OSError, ValueError) as error:
        raise unreadable_layer(error) from error


def bill_of_image(image: Path) -> bytes:
    """Return the bill of materials of an image: the one that it carries, or the same one made anew.

    Raises
    ------
    RequestError
        It is no image of ours, or damaged.
    """
    if read_sif(image).find(SBOM) is not None:
        bill = read_data(image, SBOM)
        try:
            json.loads(bill)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"the bill of materials in `{image.name}` is damaged",
                at=Location(path=image),
                hint="build the image anew from its spec, or take it from where it is whole",
            ) from error
        return bill
    lock = load(read_data(image, LOCK), image)
    with file_systems(image) as layers:
        return sbom(lock, read_packages(layers))


def check_target(
    path: Path,
    *,
    keep: Sequence[Path],
    is_one: Callable[[Path], bool] = looks_like_sif,
    what: str = "image",
    hint: str = "",
) -> None:
    """Refuse a place where no image can or should be written, before any work is done.

    Parameters
    ----------
    keep : sequence of Path
        Files that an image must never replace: the spec and its lock.
    is_one : callable
        Whether a file is of the kind that may be replaced.
    what : str
        That kind, for people.
    hint : str
        How to name another place; of the option -o where it is empty.

    Raises
    ------
    RequestError
        It is a directory, lies in none that can be written, or is a file of another kind.
    """
    told = "an image" if not hint else f"a {what}"
    hint = hint or "name another file with -o " + ("IMAGE.sif" if what == "image" else "PATH")
    directory = path.parent
    if str(path) == "-":
        raise RequestError(f"{told} is not written to standard output", hint=hint)
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
        if replaced or not path.is_file() or not is_one(path):
            raise RequestError(f"`{path}` is there already and is no {what}: it is left alone", hint=hint)


def is_image(path: Path, manifest: Manifest) -> bool:
    """Return whether a file is already this image, as far as its own story tells."""
    try:
        return path.is_file() and read_manifest(path) == manifest and read_sif(path).find(SBOM) is not None
    except EnvbuildError:
        return False
