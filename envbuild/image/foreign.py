"""Writes an image of another tool again, with another file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envbuild.digests import sha256_of
from envbuild.image import sifformat as form
from envbuild.image.file import ImageFile
from envbuild.image.sif import SifFile, identity_of, read_frame, unwritable
from envbuild.image.sifformat import Descriptor, Kind
from envbuild.squashfs.splice import Splice
from envbuild.system.files import atomic_file, copy_range, write_at


def extended_bytes(image: ImageFile, splice: Splice) -> int:
    """Return how long the file is that `write_foreign` writes, in bytes; at most a page less."""
    return image.size_bytes - image.root.size_bytes + form.PARTITION_ALIGNMENT + splice.size_bytes


def write_foreign(
    path: Path,
    image: ImageFile,
    splice: Splice,
    *,
    advanced: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write an image with another file system, in place of an earlier one: all of it, or nodescriptor.

    A SIF keeps all its other data, except signatures, which no longer hold. The same arguments give the same
    bytes. `advanced` is called with the number of bytes of each part that was copied; an error of `check`,
    which is called last, leaves `path` as it is. RequestError: nodescriptor can be written at `path`.
    MachineError: the disk is full or fails, or the image cannot be read.
    """
    try:
        with atomic_file(path, mode=0o777, check=check) as file:
            if image.sif is None:
                splice.write(file, 0, advanced)
                return
            frame, moves, root_offset = _lay_out(image, image.sif, splice)
            for offset, size, target in moves:
                copy_range(image.file.fileno(), offset, size, file, target, advanced)
            splice.write(file, root_offset, advanced)
            write_at(file, frame, 0)
    except OSError as error:
        raise unwritable(path, error) from error


def _lay_out(image: ImageFile, sif: SifFile, splice: Splice) -> tuple[bytes, list[tuple[int, int, int]], int]:
    """Place each object of a SIF, the root behind all others.

    Returns header and descriptors; of the objects besides the root where they lie, their sizes and where they
    go; and the offset of the root.
    """
    header, entries = read_frame(image.file)
    at = begin = form.DESCRIPTORS_OFFSET + len(entries) * form.DESCRIPTOR_BYTES
    objects = [
        (index, descriptor) for index, entry in enumerate(entries) if (descriptor := Descriptor.parse(entry))
    ]
    kept: dict[int, bytes] = {}
    moves: list[tuple[int, int, int]] = []
    for index, descriptor in sorted(objects, key=lambda pair: pair[1].offset):
        if descriptor.kind in (Kind.PARTITION, Kind.SIGNATURE):
            continue
        kept[index] = form.moved(entries[index], offset=at, size=descriptor.size, padded_size=descriptor.size)
        moves.append((descriptor.offset, descriptor.size, at))
        at += descriptor.size
    root_offset = form.aligned(at, form.PARTITION_ALIGNMENT)
    padded_size = root_offset - at + splice.size_bytes
    for index, descriptor in objects:
        if descriptor.kind == Kind.PARTITION:
            kept[index] = form.moved(
                entries[index], offset=root_offset, size=splice.size_bytes, padded_size=padded_size
            )
    head = form.changed_header(
        header,
        identity=identity_of(sha256_of(sif.identity.bytes + splice.tables_digest.encode())),
        free=len(entries) - len(kept),
        total=len(entries),
        data_offset=begin,
        data_bytes=root_offset + splice.size_bytes - begin,
    )
    unused = bytes(form.DESCRIPTOR_BYTES)
    descriptors = b"".join(kept.get(index, unused) for index in range(len(entries)))
    return head.ljust(form.DESCRIPTORS_OFFSET, b"\0") + descriptors, moves, root_offset
