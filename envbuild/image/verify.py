"""Compares an image with its manifest, byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import Location, RequestError
from envbuild.image import sifformat as form
from envbuild.image.model import FileSystem
from envbuild.image.sif import AGAIN, DATA, LOCK, digest_of, frame_of, opened, read_manifest, read_sif
from envbuild.jobs.report import CheckResult
from envbuild.squashfs.format import SUPERBLOCK_BYTES
from envbuild.squashfs.splice import digest_of_tables

Advanced = Callable[[int], None]

DIGEST = "image.digest"
_THE_HEADER = (
    "the header, or the data that its identity is made from: manifest, plan, bill of materials, labels"
    " or definition"
)


def verify_image(path: Path, *, advanced: Advanced = lambda _: None) -> tuple[str, ...]:
    """Read all of an image; return which parts have changed since it was written, in words.

    Signatures, and other data added behind it, do not count. `advanced` is called with the number of bytes of
    each part read.
    """
    return (*changed_file_system(path, advanced=advanced), *changed_around(path))


def check_image_is_whole(path: Path, *, advanced: Advanced = lambda _: None) -> None:
    """Raise a RequestError if an image has changed since it was written."""
    _refuse(path, verify_image(path, advanced=advanced))


def check_around(path: Path) -> None:
    """Raise a RequestError if anything in an image but its file system has changed."""
    _refuse(path, changed_around(path))


def _refuse(path: Path, changed: Sequence[str]) -> None:
    if changed:
        raise RequestError(
            f"`{path.name}` was changed or damaged: {', '.join(changed)}", at=Location(path=path), hint=AGAIN
        )


def changed_file_system(path: Path, *, advanced: Advanced = lambda _: None) -> tuple[str, ...]:
    """Return which layers of an image have changed since it was written, and whether its tables have."""
    manifest, root = read_manifest(path), read_sif(path).root
    system = manifest.file_system
    if system is None or root is None or root.size != system.size_bytes:
        return ("its file system",)
    with opened(path) as file:
        return tuple(_changed(file, root.offset, system, advanced))


def tables_are_right(path: Path, system: FileSystem) -> bool:
    """Return whether an image has a file system of that size and with those tables; reads little of it."""
    root = read_sif(path).root
    if root is None or root.size != system.size_bytes:
        return False
    with opened(path) as file:
        return _tables(file, root.offset, system) == system.tables


def _changed(file: BinaryIO, offset: int, system: FileSystem, advanced: Advanced) -> Iterator[str]:
    end = SUPERBLOCK_BYTES
    padding_changed = False
    for layer in system.layers:
        padding_changed |= any(os.pread(file.fileno(), layer.offset - end, offset + end))
        if digest_of(file, offset + layer.offset, layer.size_bytes, advanced) != layer.data:
            yield f"layer {layer.name}"
        end = layer.offset + layer.size_bytes
    if padding_changed or end != system.tables_offset or _tables(file, offset, system) != system.tables:
        yield "the tables of its file system"


def _tables(file: BinaryIO, offset: int, system: FileSystem) -> str:
    superblock = os.pread(file.fileno(), SUPERBLOCK_BYTES, offset)
    tables = os.pread(file.fileno(), system.size_bytes - system.tables_offset, offset + system.tables_offset)
    return digest_of_tables(superblock, tables)


def changed_around(path: Path) -> tuple[str, ...]:
    """Return which parts besides the file system have changed since the image was written, in words.

    The identity in the header is a digest of all data, and the manifest has the digest of the lock.
    """
    manifest, sif = read_manifest(path), read_sif(path)
    objects = {name: descriptor for name in DATA if (descriptor := sif.find(name))}
    with opened(path) as file:
        frame = os.pread(file.fileno(), form.DATA_OFFSET, 0)
        digests = {
            name: digest_of(file, descriptor.offset, descriptor.size) for name, descriptor in objects.items()
        }
    try:
        # Computed with the manifest's lock, so that a changed lock alone is not also a changed header.
        written = frame_of(
            {name: objects[name].size if name in objects else 0 for name in DATA},
            {**digests, LOCK: manifest.lock_digest},
            file_system_bytes=manifest.file_system.size_bytes if manifest.file_system else 0,
            architecture=manifest.architecture,
        )
    except ValueError:
        return (_THE_HEADER,)  # SIF has no code for the manifest's architecture
    changed = []
    if frame[: form.HEADER_FIXED_BYTES] != written[: form.HEADER_FIXED_BYTES]:
        changed.append(_THE_HEADER)
    table = slice(form.DESCRIPTORS_OFFSET, form.DESCRIPTORS_OFFSET + (len(DATA) + 1) * form.DESCRIPTOR_BYTES)
    if frame[table] != written[table]:
        changed.append("the table of descriptors")
    if digests.get(LOCK) != manifest.lock_digest:
        changed.append("the lock")
    return tuple(changed)


def judge_bytes(changed: Sequence[str]) -> CheckResult:
    """Return the check that an image is the one that was built, given the result of `verify_image`."""
    expected = "all parts as built"
    if changed:
        return CheckResult("FAIL", DIGEST, expected, ", ".join(changed), AGAIN)
    return CheckResult("PASS", DIGEST, expected, expected)
