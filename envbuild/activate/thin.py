"""The parts of an image as files of their own, for installations that share them."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from envbuild.errors import Location, MachineError, RequestError
from envbuild.image.model import Manifest, Part
from envbuild.image.sif import read_sif

_CHUNK_BYTES = 4 * 1024 * 1024
_READ_ALL = 0o444


def provide_parts(
    image: Path,
    manifest: Manifest,
    part_path: Callable[[str], Path],
    *,
    copied: Callable[[int], None] = lambda _: None,
) -> dict[str, Path]:
    """Return where each part of an image lies as a file; those that are missing or damaged come from it.

    Parameters
    ----------
    image : Path
        The SIF.
    manifest : Manifest
        What it says of itself, parts included.
    part_path : callable
        Digest → the path where the store keeps, or would keep, that blob.
    copied : callable, optional
        Called with the bytes (count) that were read or taken since the last call.

    Raises
    ------
    RequestError
        The image is cut, holds other parts than it says, or a part's bytes do
        not have its digest.
    MachineError
        The store cannot be written.
    """
    paths = {part.digest: part_path(part.digest) for part in manifest.parts}
    missing = [
        (index, part)
        for index, part in enumerate(manifest.parts)
        if not _there(paths[part.digest], part, copied)
    ]
    if not missing:
        return paths
    partitions = read_sif(image).partitions
    if [partition.size for partition in partitions] != [part.size_bytes for part in manifest.parts]:
        raise RequestError(
            "the image holds other file systems than it says",
            at=Location(path=image),
            hint="build it anew: `envbuild build SPEC`; or leave out --thin",
        )
    for index, part in missing:
        try:
            _take(image, partitions[index].offset, part, paths[part.digest], copied)
        except OSError as error:
            raise MachineError(
                f"a part of the image cannot be kept in the store: {error.filename or paths[part.digest]}:"
                f" {error.strerror}",
                hint="name another store with --store DIR, or install without --thin",
            ) from error
    return paths


def _there(path: Path, part: Part, read: Callable[[int], None]) -> bool:
    """Return whether a file holds a part, byte by byte: a verdict of the image is one of these bytes."""
    digest = hashlib.sha256()
    try:
        if not path.is_file() or path.stat().st_size != part.size_bytes:
            return False
        with path.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                read(len(chunk))
    except OSError:
        return False
    return f"sha256:{digest.hexdigest()}" == part.digest


def _take(image: Path, offset: int, part: Part, target: Path, copied: Callable[[int], None]) -> None:
    """Copy one file system out of the image; it gets its name only when its digest is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".unverified-{secrets.token_hex(8)}")
    digest = hashlib.sha256()
    left = part.size_bytes
    try:
        with image.open("rb") as source, staged.open("xb") as sink:
            source.seek(offset)
            while left and (chunk := source.read(min(left, _CHUNK_BYTES))):
                sink.write(chunk)
                digest.update(chunk)
                left -= len(chunk)
                copied(len(chunk))
            os.fchmod(sink.fileno(), _READ_ALL)
            sink.flush()
            os.fsync(sink.fileno())
        if left or f"sha256:{digest.hexdigest()}" != part.digest:
            raise RequestError(
                f"the part {part.digest} of the image is damaged",
                at=Location(path=image),
                hint="build it again, or copy it again from where it came",
            )
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)
