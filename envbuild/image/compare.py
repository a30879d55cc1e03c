"""Compares two images: the objects of their SIFs, and the paths of their file systems.

Nothing is unpacked or mounted; both images are untrusted input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envbuild.errors import Location, RequestError
from envbuild.image.file import ImageFile
from envbuild.image.sif import HINT_REBUILD, MANIFEST
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
from envbuild.store.tree import Tree

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


def compare_images(first: ImageFile, second: ImageFile) -> Comparison:
    """Compare an image, which may have been signed since its build, with one that was just built.

    RequestError: one is not a SIF, or a file system that differs cannot be read.
    """
    left, right = _objects_of(first), _objects_of(second)
    added = tuple(Kind(item.kind).name.lower() for item in left if item.kind in _ADDED)
    differences = [*_objects(first, second)]
    roots = [next((item for item in items if item.kind == Kind.PARTITION), None) for items in (left, right)]
    if roots[0] and roots[1] and _digest(first, roots[0]) != _digest(second, roots[1]):
        differences += _file_systems(first, second)
    if not differences:
        differences += _frame(first, second)
    return Comparison(identical=not differences and not added, added=added, differences=tuple(differences))


def _objects_of(image: ImageFile) -> tuple[Descriptor, ...]:
    return image.sif.objects if image.sif else ()


def _digest(image: ImageFile, descriptor: Descriptor) -> str:
    return image.digest_of(descriptor.offset, descriptor.size)


def _objects(left: ImageFile, right: ImageFile) -> Iterator[ImageDifference]:
    """Compare the objects of two SIFs by name, but not the content of their file systems."""
    theirs = {_title(item): item for item in _objects_of(left) if item.kind not in _ADDED}
    ours = {_title(item): item for item in _objects_of(right)}
    for title in sorted(theirs.keys() | ours.keys()):
        if title not in ours:
            yield ImageDifference(inside=False, path=title, kind="missing")
        elif title not in theirs:
            yield ImageDifference(inside=False, path=title, kind="extra")
        elif theirs[title].kind != Kind.PARTITION and _digest(left, theirs[title]) != _digest(
            right, ours[title]
        ):
            detail = f"{theirs[title].size}, {ours[title].size} bytes"
            yield ImageDifference(inside=False, path=title, kind="content", detail=detail)


def _title(descriptor: Descriptor) -> str:
    return descriptor.name or f"object {descriptor.number}"


def _file_systems(left: ImageFile, right: ImageFile) -> list[ImageDifference]:
    try:
        differences = [
            ImageDifference(inside=True, path=path, kind=kind, detail=detail)
            for path, kind, detail in compare_file_systems(left.root, right.root)
        ]
    except SquashfsError as error:
        raise RequestError(
            f"the file system of `{left.path.name}` differs, and cannot be read: {error}",
            at=Location(path=left.path),
            hint=HINT_REBUILD,
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


def _frame(left: ImageFile, right: ImageFile) -> Iterator[ImageDifference]:
    """Compare the header, the descriptors, and the padding between and behind the objects.

    A signature sets times and counts in the header, uses further descriptors, and lies behind everything
    else.
    """
    heads = [image.read(0, DATA_OFFSET) for image in (left, right)]
    is_signed = len(_objects_of(left)) > len(_objects_of(right))
    if is_signed:
        used = DESCRIPTORS_OFFSET + len(_objects_of(right)) * DESCRIPTOR_BYTES
        heads = [head[:HEADER_FIXED_BYTES] + head[HEADER_BYTES:used] for head in heads]
    if heads[0] != heads[1]:
        yield ImageDifference(inside=False, path="header", kind="content")
    digests = [image.digest_of(DATA_OFFSET, right.size_bytes - DATA_OFFSET) for image in (left, right)]
    if digests[0] != digests[1] or not (is_signed or left.size_bytes == right.size_bytes):
        yield ImageDifference(inside=False, path="padding", kind="content")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference:
    """A difference, and the layer that it is in."""

    layer: str
    """Name of the layer; ``SIF`` for everything around the file system."""
    path: str
    kind: str
    detail: str
    """See `ImageDifference`."""


def differences_by_layer(comparison: Comparison, trees: Mapping[str, Tree]) -> Iterator[LayerDifference]:
    """Yield the differences of two images with the layers that they are in."""
    differs_inside = any(difference.inside for difference in comparison.differences)
    for difference in comparison.differences:
        # The manifest has the digests of layers, whose differences are reported already.
        if differs_inside and not difference.inside and difference.path == MANIFEST:
            continue
        yield LayerDifference(
            layer=_layer_of(difference, trees),
            path=difference.path,
            kind=difference.kind,
            detail=difference.detail,
        )


def _layer_of(difference: ImageDifference, trees: Mapping[str, Tree]) -> str:
    """Return the layer of a path: the uppermost that holds it or, failing that, a directory above it."""
    if not difference.inside:
        return "SIF"
    path = difference.path.strip("/")
    while path:
        holding = [name for name, tree in trees.items() if path in tree]
        if holding:
            return holding[-1]
        path = path.rpartition("/")[0]
    return "image"
