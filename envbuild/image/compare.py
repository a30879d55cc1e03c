"""Compares two images: the objects of their SIFs, and the paths of their file systems.

Nothing is unpacked or mounted; both images are untrusted input.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import Location, RequestError
from envbuild.image.sif import AGAIN, SifFile, digest_of, opened, read_sif
from envbuild.image.sifformat import (
    DATA_OFFSET,
    DESCRIPTOR_BYTES,
    DESCRIPTORS_OFFSET,
    HEADER_BYTES,
    HEADER_FIXED_BYTES,
    Descriptor,
    Kind,
)
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Entry, Squashfs

_CHUNK_BYTES = 1024 * 1024
# Objects that `apptainer sign` adds to a finished image.
_ADDED = (Kind.SIGNATURE, Kind.CRYPTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDifference:
    """One difference between two images."""

    inside: bool
    """Whether it is in the file system; else it is in the SIF around it."""
    path: str
    """Path in the file system; in the SIF the name of an object, or ``header`` or ``padding``."""
    kind: str
    """``missing`` (only the first has it), ``extra`` (only the second), ``type``, ``content``, ``mode``,
    ``owner``, ``time``, ``link``, ``attributes``, or ``packing``: the same files, in another order or
    compressed otherwise.
    """
    detail: str = ""
    """The two values, if they can be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two images."""

    identical: bool
    """Whether the files are the same, byte by byte."""
    added: tuple[str, ...]
    """Kinds of the objects added to the first image after its build: signatures."""
    differences: tuple[ImageDifference, ...]
    """Differences other than `added`."""


@dataclass(frozen=True, slots=True)
class _Image:
    """An open image."""

    file: BinaryIO
    sif: SifFile

    def digest(self, part: Descriptor) -> str:
        return digest_of(self.file, part.offset, part.size)


def compare_images(first: Path, second: Path) -> Comparison:
    """Compare an image, which may have been signed since its build, with one that was just built.

    RequestError: one is not a SIF, or a file system that differs cannot be read.
    """
    with opened(first) as left_file, opened(second) as right_file:
        left, right = _Image(left_file, read_sif(first)), _Image(right_file, read_sif(second))
        added = tuple(Kind(item.kind).name.lower() for item in left.sif.objects if item.kind in _ADDED)
        differences = [*_objects(left, right)]
        roots = left.sif.root, right.sif.root
        if roots[0] and roots[1] and left.digest(roots[0]) != right.digest(roots[1]):
            differences += _file_systems(left, roots[0], right, roots[1], first)
        if not differences:
            differences += _frame(left, right)
    return Comparison(identical=not differences and not added, added=added, differences=tuple(differences))


def _objects(left: _Image, right: _Image) -> Iterator[ImageDifference]:
    """Compare the objects of two SIFs by name, but not the content of their file systems."""
    theirs = {_title(item): item for item in left.sif.objects if item.kind not in _ADDED}
    ours = {_title(item): item for item in right.sif.objects}
    for title in sorted(theirs.keys() | ours.keys()):
        if title not in ours:
            yield ImageDifference(inside=False, path=title, kind="missing")
        elif title not in theirs:
            yield ImageDifference(inside=False, path=title, kind="extra")
        elif theirs[title].kind != Kind.PARTITION and left.digest(theirs[title]) != right.digest(ours[title]):
            detail = f"{theirs[title].size}, {ours[title].size} bytes"
            yield ImageDifference(inside=False, path=title, kind="content", detail=detail)


def _title(descriptor: Descriptor) -> str:
    return descriptor.name or f"object {descriptor.number}"


def _file_systems(
    left: _Image, left_root: Descriptor, right: _Image, right_root: Descriptor, path: Path
) -> list[ImageDifference]:
    try:
        first = Squashfs(left.file, left_root.offset, left_root.size)
        second = Squashfs(right.file, right_root.offset, right_root.size)
        differences = [
            ImageDifference(inside=True, path=place, kind=kind, detail=detail)
            for place, kind, detail in compare_file_systems(first, second)
        ]
    except SquashfsError as error:
        raise RequestError(
            f"the file system of `{path.name}` differs, and cannot be read: {error}",
            at=Location(path=path),
            hint=AGAIN,
        ) from error
    detail = "the same files, in another order or compressed otherwise"
    return differences or [ImageDifference(inside=True, path="/", kind="packing", detail=detail)]


def compare_file_systems(first: Squashfs, second: Squashfs) -> Iterator[tuple[str, str, str]]:
    """Yield the differences of two file systems: path, kind and detail, as in `ImageDifference`.

    SquashfsError: one of them is damaged.
    """
    left_entries = {entry.path: entry for entry in first.walk()}
    right_entries = {entry.path: entry for entry in second.walk()}
    for path in sorted(left_entries.keys() | right_entries.keys()):
        left, right = left_entries.get(path), right_entries.get(path)
        if left is None or right is None:
            yield path, "missing" if left else "extra", (left or right_entries[path]).kind
        elif left.kind != right.kind:
            yield path, "type", f"{left.kind}, {right.kind}"
        else:
            yield from ((path, kind, detail) for kind, detail in _entries(first, second, left, right))


def _entries(first: Squashfs, second: Squashfs, left: Entry, right: Entry) -> Iterator[tuple[str, str]]:
    if left.mode != right.mode:
        yield "mode", f"{left.mode:04o}, {right.mode:04o}"
    if left.owner != right.owner:
        yield "owner", ", ".join(f"{user}:{group}" for user, group in (left.owner, right.owner))
    if left.mtime_s != right.mtime_s:
        yield "time", f"{left.mtime_s}, {right.mtime_s} (seconds since the epoch)"
    if left.target != right.target:
        yield "link", f"{left.target!r}, {right.target!r}"
    if left.attributes != right.attributes:
        names = sorted({name for name, _ in {*left.attributes} ^ {*right.attributes}})
        yield "attributes", ", ".join(names) or "their order"
    if left.kind == "file" and not _has_same_content(first, second, left, right):
        yield "content", f"{left.size}, {right.size} bytes"


def _has_same_content(first: Squashfs, second: Squashfs, left: Entry, right: Entry) -> bool:
    if left.size != right.size:
        return False
    with first.open(left) as left_content, second.open(right) as right_content:
        while chunk := left_content.read(_CHUNK_BYTES):
            if chunk != right_content.read(_CHUNK_BYTES):
                return False
    return True


def _frame(left: _Image, right: _Image) -> Iterator[ImageDifference]:
    """Compare the header, the descriptors, and the padding between and behind the objects.

    A signature sets times and counts in the header, uses further descriptors, and lies behind everything
    else.
    """
    heads = [os.pread(image.file.fileno(), DATA_OFFSET, 0) for image in (left, right)]
    is_signed = len(left.sif.objects) > len(right.sif.objects)
    if is_signed:
        used = DESCRIPTORS_OFFSET + len(right.sif.objects) * DESCRIPTOR_BYTES
        heads = [head[:HEADER_FIXED_BYTES] + head[HEADER_BYTES:used] for head in heads]
    if heads[0] != heads[1]:
        yield ImageDifference(inside=False, path="header", kind="content")
    size = right.sif.size_bytes - DATA_OFFSET
    digests = [digest_of(image.file, DATA_OFFSET, size) for image in (left, right)]
    if digests[0] != digests[1] or not (is_signed or left.sif.size_bytes == right.sif.size_bytes):
        yield ImageDifference(inside=False, path="padding", kind="content")
