"""Compares an image with its manifest, byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.image import sifformat as form
from envbuild.image.model import FileSystem
from envbuild.image.sif import AGAIN, DATA, LOCK, digest_of, frame_of, read_manifest, read_sif, unreadable
from envbuild.jobs.report import CheckResult
from envbuild.squashfs.format import SUPERBLOCK_BYTES
from envbuild.squashfs.splice import digest_of_tables

Advanced = Callable[[int], None]

# The check of an image's bytes.
DIGEST = "image.digest"
# As a part of an image, in words.
THE_LOCK = "the lock"
_THE_HEADER = (
    "the header, or the data that its identity is made from: manifest, plan, bill of materials, labels"
    " or definition"
)


def verify_image(path: Path, *, advanced: Advanced = lambda _: None) -> tuple[str, ...]:
    """Return which parts of an image are not as they were written, in words; empty if it is whole.

    Reads all of it. A signature, or other data that somebody added behind, changes nothing.

    Parameters
    ----------
    advanced : callable
        Called with the number of bytes each time that so many were read.

    Raises
    ------
    RequestError
        As `envbuild.image.sif.read_manifest`.
    """
    return (*changed_file_system(path, advanced=advanced), *changed_around(path))


def check_image_is_whole(path: Path, *, advanced: Advanced = lambda _: None) -> None:
    """Refuse an image that is not as it was written.

    Raises
    ------
    RequestError
        It is not; or as `verify_image`.
    """
    _refuse(path, verify_image(path, advanced=advanced))


def check_around(path: Path) -> None:
    """Refuse an image of which anything besides its file system is not as it was written.

    Raises
    ------
    RequestError
        It is not; or as `changed_around`.
    """
    _refuse(path, changed_around(path))


def _refuse(path: Path, changed: Sequence[str]) -> None:
    if changed:
        raise RequestError(
            f"`{path.name}` was changed or damaged: {', '.join(changed)}", at=Location(path=path), hint=AGAIN
        )


def changed_file_system(path: Path, *, advanced: Advanced = lambda _: None) -> tuple[str, ...]:
    """Return which layers of an image are not as they were written, and whether its tables are.

    Raises
    ------
    RequestError
        As `envbuild.image.sif.read_manifest`.
    """
    manifest, root = read_manifest(path), read_sif(path).root
    system = manifest.file_system
    if system is None or root is None or root.size != system.size_bytes:
        return ("its file system",)
    try:
        with path.open("rb") as file:
            return tuple(_changed(file.fileno(), root.offset, system, advanced))
    except OSError as error:
        raise unreadable(path, error) from error


def tables_are_right(path: Path, system: FileSystem) -> bool:
    """Return whether an image has a file system of that size and with those tables; reads little of it.

    Raises
    ------
    RequestError
        As `envbuild.image.sif.read_sif`.
    """
    root = read_sif(path).root
    if root is None or root.size != system.size_bytes:
        return False
    try:
        with path.open("rb") as file:
            return _tables(file.fileno(), root.offset, system) == system.tables
    except OSError as error:
        raise unreadable(path, error) from error


def _changed(file: int, offset: int, system: FileSystem, advanced: Advanced) -> Iterator[str]:
    end = SUPERBLOCK_BYTES
    between = False
    for layer in system.layers:
        between |= any(os.pread(file, layer.offset - end, offset + end))
        if digest_of(file, offset + layer.offset, layer.size_bytes, advanced) != layer.data:
            yield f"layer {layer.name}"
        end = layer.offset + layer.size_bytes
    if between or end != system.tables_offset or _tables(file, offset, system) != system.tables:
        yield "the tables of its file system"


def _tables(file: int, offset: int, system: FileSystem) -> str:
    superblock = os.pread(file, SUPERBLOCK_BYTES, offset)
    tables = os.pread(file, system.size_bytes - system.tables_offset, offset + system.tables_offset)
    return digest_of_tables(superblock, tables)


def changed_around(path: Path) -> tuple[str, ...]:
    """Return which parts besides its file system are not as they were written, in words.

    The identity in the header is made from the digests of all data, and the manifest has that of the lock.

    Raises
    ------
    RequestError
        As `envbuild.image.sif.read_manifest`.
    """
    manifest, sif = read_manifest(path), read_sif(path)
    objects = {name: thing for name in DATA if (thing := sif.find(name))}
    try:
        with path.open("rb") as file:
            frame = os.pread(file.fileno(), form.DATA_OFFSET, 0)
            digests = {
                name: digest_of(file.fileno(), thing.offset, thing.size) for name, thing in objects.items()
            }
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        # An image with another lock has the identity that the lock of its manifest gives.
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
        changed.append(THE_LOCK)
    return tuple(changed)


def judge_bytes(changed: Sequence[str]) -> CheckResult:
    """Judge whether the image is, byte by byte, the one that was built.

    Parameters
    ----------
    changed : sequence of str
        The parts that differ, from `verify_image`.
    """
    expected = "all parts as built"
    if changed:
        return CheckResult("FAIL", DIGEST, expected, ", ".join(changed), AGAIN)
    return CheckResult("PASS", DIGEST, expected, expected)
