"""Images of registries in a store: whole files, which commands use in place.

    images/ab/<hex>/NAME.sif            hex digest of the file; the name is for people
    images/ab/<hex>/.<manifest hex>     empty, for each manifest that describes it; its time is the last use

The time of the image itself stays: commands that read it would take another for a change of its bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from envbuild.store.records import hex_of
from envbuild.store.store import Store
from envbuild.system.files import make_directory

DIRECTORY = "images"
_HEX = re.compile(r"[0-9a-f]{64}")


def image_of_manifest(store: Store, manifest_digest: str) -> Path | None:
    """Return the image that a manifest describes, marked as used now; None if the store lacks it."""
    marks = sorted((store.root / DIRECTORY).glob(f"??/*/.{hex_of(manifest_digest)}"))
    directories = (mark.parent for mark in marks if _HEX.fullmatch(mark.parent.name))
    for directory in directories:
        if (image := image_of_file(store, f"sha256:{directory.name}", manifest_digest)) is not None:
            return image
    return None


def image_of_file(store: Store, file_digest: str, manifest_digest: str) -> Path | None:
    """Return the image with these bytes, marked as used now by a manifest; None if the store lacks it."""
    directory = _directory(store, file_digest)
    images = stored_images(directory)
    if not images or not store.is_private(images[0].relative_to(store.root)):
        return None
    mark_image(store, file_digest, manifest_digest)
    return images[0]


def stored_images(directory: Path) -> list[Path]:
    """Return the image in a directory of the store; nothing while it is being written."""
    with contextlib.suppress(OSError):
        return sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    return []


def new_image(store: Store, file_digest: str, name: str) -> Path:
    """Return where the image with these bytes goes: ``NAME.sif``, or in place of a damaged one."""
    store.directory(DIRECTORY)
    directory = _directory(store, file_digest)
    try:
        make_directory(directory.parent)
        make_directory(directory)
    except OSError as error:
        raise store.write_error(error) from error
    return next(iter(stored_images(directory)), directory / f"{name[:200]}.sif")


def mark_image(store: Store, file_digest: str, manifest_digest: str) -> None:
    """Record that a manifest describes the image with these bytes, and that it is used now."""
    mark = _directory(store, file_digest) / f".{hex_of(manifest_digest)}"
    try:
        mark.touch()
        os.utime(mark)
    except OSError as error:
        raise store.write_error(error) from error


def _directory(store: Store, file_digest: str) -> Path:
    hexadecimal = hex_of(file_digest)
    return store.root / DIRECTORY / hexadecimal[:2] / hexadecimal
