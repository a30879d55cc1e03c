"""In what two images differ: objects of the SIF, and paths of its file system.

Nothing is unpacked or mounted; both images are read as a stranger's are.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import Location, RequestError
from envbuild.image.contents import unreadable
from envbuild.image.sif import SifFile, read_sif
from envbuild.image.sifformat import (
    DATA_OFFSET,
    DESCRIPTOR_BYTES,
    DESCRIPTORS_OFFSET,
    HEADER_BYTES,
    HEADER_FIXED_BYTES,
    Descriptor,
    Kind,
)
from envbuild.squashfs.reader import Entry, Squashfs

_CHUNK_BYTES = 1024 * 1024
# What may be added to a finished image and says nothing of what it was made from.
_ADDED = (Kind.SIGNATURE, Kind.CRYPTO)
# Fields of a squashfs' superblock that are of the packing, not of what was packed.
_PACKING = struct.Struct("<5I2H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which two images differ.

    Attributes
    ----------
    inside : bool
        Whether it is in the file system; else it is in the SIF around it.
    path : str
        In the image; for the SIF the name of an object, or ``header``, ``table`` or ``padding``.
    kind : str
        ``missing`` (only the first has it), ``extra`` (only the second), ``type``, ``content``,
        ``mode``, ``owner``, ``time``, ``link``, ``attributes``, or ``packing``: the same files,
        in another order or compressed otherwise.
    detail : str
        The two values, or where they part.
    """

    inside: bool
    path: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison of two images found.

    Attributes
    ----------
    identical : bool
        Whether the files are the same, byte by byte.
    added : tuple of str
        Kinds of the objects that only the first has and that are none of the build's: signatures.
    differences : tuple of Difference
        Empty where the images are the same but for what was added.
    """

    identical: bool
    added: tuple[str, ...]
    differences: tuple[Difference, ...]


# All that the descriptors name is the same, and so are they.
_BETWEEN = Difference(inside=False, path="padding", kind="content", detail="between or behind the objects")


def compare_images(first: Path, second: Path) -> Comparison:
    """Compare two images byte by byte; where they differ, find out in what.

    Raises
    ------
    RequestError
        One of them is no SIF, or a file system that differs cannot be read.
    """
    left, right = read_sif(first), read_sif(second)
    with _reading(first) as one, _reading(second) as two:
        if _same(one, two, 0, 0, left.size_bytes, right.size_bytes) < 0:
            return Comparison(identical=True, added=(), differences=())
        added = tuple(Kind(thing.kind).name.lower() for thing in left.objects if thing.kind in _ADDED)
        # What was added lies behind all that was built.
        end = min(left.size_bytes, right.size_bytes) if added else left.size_bytes
        if _same(one, two, DATA_OFFSET, DATA_OFFSET, end - DATA_OFFSET, right.size_bytes - DATA_OFFSET) < 0:
            found = list(_frames(left, one, two, signed=bool(added)))
        else:
            found = list(_objects(left, right, one, two))
            mine, other = left.root, right.root
            if mine and other and _same(one, two, mine.offset, other.offset, mine.size, other.size) >= 0:
                found += _file_systems(one, two, mine, other, first)
            if not found:
                found = list(_frames(left, one, two, signed=bool(added))) or [_BETWEEN]
    return Comparison(identical=False, added=added, differences=tuple(found))


def compare_file_systems(first: Squashfs, second: Squashfs) -> Iterator[tuple[str, str, str]]:
    """Yield in what two file systems differ: path, kind and detail, as `Difference` has them.

    Raises
    ------
    ValueError
        One of them is damaged.
    """
    ours = {entry.path: entry for entry in first.walk()}
    theirs = {entry.path: entry for entry in second.walk()}
    for path in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(path), theirs.get(path)
        if mine is None or other is None:
            yield path, "missing" if other is None else "extra", (mine or other or Entry("", "other", 0)).kind
        elif mine.kind != other.kind:
            yield path, "type", f"{mine.kind}, {other.kind}"
        else:
            yield from ((path, *told) for told in _entries(first, second, mine, other))


def _entries(first: Squashfs, second: Squashfs, mine: Entry, other: Entry) -> Iterator[tuple[str, str]]:
    if mine.mode != other.mode:
        yield "mode", f"{mine.mode:04o}, {other.mode:04o}"
    if mine.owner != other.owner:
        yield "owner", ", ".join(f"{user}:{group}" for user, group in (mine.owner, other.owner))
    if mine.mtime_s != other.mtime_s:
        yield "time", f"{mine.mtime_s}, {other.mtime_s} (seconds since the epoch)"
    if mine.target != other.target:
        yield "link", f"{mine.target!r}, {other.target!r}"
    if mine.attributes != other.attributes:
        names = sorted({name for name, _ in {*mine.attributes} ^ {*other.attributes}})
        yield "attributes", ", ".join(names) or "their order"
    if mine.kind == "file":
        at = _first_difference(first, second, mine, other)
        if at >= 0:
            yield "content", f"from byte {at} of {mine.size}, {other.size}"


def _first_difference(first: Squashfs, second: Squashfs, mine: Entry, other: Entry) -> int:
    at = 0
    with first.open(mine) as one, second.open(other) as two:
        while True:
            chunk, counter = one.read(_CHUNK_BYTES), two.read(_CHUNK_BYTES)
            if chunk != counter:
                return at + _parting(chunk, counter)
            if not chunk:
                return -1
            at += len(chunk)


def _file_systems(
    one: BinaryIO, two: BinaryIO, mine: Descriptor, other: Descriptor, path: Path
) -> list[Difference]:
    try:
        found = [
            Difference(inside=True, path=place, kind=kind, detail=detail)
            for place, kind, detail in compare_file_systems(
                Squashfs(one, mine.offset, mine.size), Squashfs(two, other.offset, other.size)
            )
        ]
    except ValueError as error:
        raise RequestError(
            f"the file system of `{path.name}` differs, and cannot be read: {error}",
            at=Location(path=path),
            hint="it is damaged: copy it again from where it came",
        ) from error
    if found:
        return found
    detail = _packing(one, two, mine.offset, other.offset)
    return [Difference(inside=True, path="/", kind="packing", detail=detail)]


def _packing(one: BinaryIO, two: BinaryIO, at: int, other_at: int) -> str:
    """Say in which settings two squashfs of the same files were packed."""
    names = {2: "time of making", 3: "size of blocks", 5: "compression"}
    fields = [_PACKING.unpack(os.pread(one.fileno(), _PACKING.size, at))]
    fields.append(_PACKING.unpack(os.pread(two.fileno(), _PACKING.size, other_at)))
    told = [
        f"{name} {fields[0][place]}, {fields[1][place]}"
        for place, name in names.items()
        if fields[0][place] != fields[1][place]
    ]
    return "; ".join(told) or "the same files, in another order or compressed otherwise"


def _objects(left: SifFile, right: SifFile, one: BinaryIO, two: BinaryIO) -> Iterator[Difference]:
    """Compare what lies in the SIF beside its file systems, and how many of these there are."""
    ours, theirs = ({_title(thing): thing for thing in sif.objects} for sif in (left, right))
    for title in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(title), theirs.get(title)
        if mine is not None and mine.kind in _ADDED:
            continue
        if mine is None or other is None:
            yield Difference(inside=False, path=title, kind="missing" if other is None else "extra")
            continue
        if mine.kind == Kind.PARTITION:
            continue
        at = _same(one, two, mine.offset, other.offset, mine.size, other.size)
        if at >= 0:
            detail = f"from byte {at} of {mine.size}, {other.size}"
            yield Difference(inside=False, path=title, kind="content", detail=detail)


def _title(thing: Descriptor) -> str:
    return thing.name or f"object {thing.number}"


def _frames(left: SifFile, one: BinaryIO, two: BinaryIO, *, signed: bool) -> Iterator[Difference]:
    """Name the pieces of the frames that differ: header, descriptors, and what lies between them.

    Parameters
    ----------
    left : SifFile
        Of the first.
    signed : bool
        Whether something was added to the first: that sets times and counts in the header, and uses up
        descriptors.
    """
    mine, other = (os.pread(file.fileno(), DATA_OFFSET, 0) for file in (one, two))
    titles = {thing.number: _title(thing) for thing in left.objects}
    header = HEADER_FIXED_BYTES if signed else HEADER_BYTES
    stretches = [("header", 0, header), ("padding", HEADER_BYTES, DESCRIPTORS_OFFSET)]
    for at in range(DESCRIPTORS_OFFSET, DATA_OFFSET - DESCRIPTOR_BYTES + 1, DESCRIPTOR_BYTES):
        thing = Descriptor.parse(mine[at : at + DESCRIPTOR_BYTES])
        if thing is None or thing.kind not in _ADDED:
            stretches.append(("table", at, at + DESCRIPTOR_BYTES))
    for name, begin, end in stretches:
        if mine[begin:end] != other[begin:end]:
            at = begin + _parting(mine[begin:end], other[begin:end])
            number = (begin - DESCRIPTORS_OFFSET) // DESCRIPTOR_BYTES + 1
            of = f", in the descriptor of {titles.get(number, 'nothing')}" if name == "table" else ""
            yield Difference(inside=False, path=name, kind="content", detail=f"byte {at}{of}")


def _same(one: BinaryIO, two: BinaryIO, at: int, other_at: int, size: int, other_size: int) -> int:
    """Return where two stretches first differ, in bytes from their beginning; -1 where they do not."""
    done = 0
    while done < min(size, other_size):
        count = min(_CHUNK_BYTES, size - done, other_size - done)
        chunk = os.pread(one.fileno(), count, at + done)
        counter = os.pread(two.fileno(), count, other_at + done)
        if chunk != counter or not chunk:
            return done + _parting(chunk, counter)
        done += len(chunk)
    return -1 if size == other_size else done


def _parting(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (mine, other) in pairs if mine != other), min(len(first), len(second)))


def _reading(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
