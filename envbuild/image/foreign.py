"""Images of anyone: a SIF with one squashfs, or a bare squashfs; read as untrusted input, written again.

Source of the numbers: pkg/sif/sif.go of Apptainer's sif library; erofs_fs.h and ext4.h of Linux.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.digests import sha256_of
from envbuild.errors import Location, RequestError
from envbuild.image import sifformat as form
from envbuild.image.sif import (
    AGAIN,
    MANIFEST,
    SifFile,
    file_system_of,
    identity_of,
    open_image,
    opened,
    read_frame,
    read_sif,
    unwritable,
)
from envbuild.image.sifformat import Descriptor, Kind, PartitionType
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import Splice
from envbuild.system.files import atomic_file, copy_range, write_at

_SQUASHFS = b"hsqs"
_START_BYTES = 2048
# Where the magic of a file system lies, the magic, and its name.
_OTHER_FILE_SYSTEMS = ((1024, b"\xe2\xe1\xf5\xe0", "EROFS"), (1080, b"\x53\xef", "ext3 or ext4"))
_PARTITIONS = {
    2: "an ext3 file system",
    3: "an archive",
    4: "raw data",
    5: "an encrypted file system",
    6: "an encrypted file system",
}
# What a SIF holds whose root is layers of an OCI image.
_OCI_OBJECTS = (0x400A, 0x400B)
_OTHER = "name a SIF whose root is one squashfs, or a bare squashfs"
_CONVERT = f"{_OTHER}: `apptainer build NEW.sif IMAGE` makes one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignImage:
    """An image that can be extended."""

    path: Path
    size_bytes: int
    """Length of the file."""
    offset: int
    root_bytes: int
    """Where its squashfs begins, and its length."""
    sif: SifFile | None = None
    """What the SIF holds; None for a bare squashfs."""

    @property
    def is_ours(self) -> bool:
        """Whether envbuild built it from a spec."""
        return self.sif is not None and self.sif.find(MANIFEST) is not None

    @property
    def signatures(self) -> int:
        """How many signatures it bears."""
        objects = self.sif.objects if self.sif else ()
        return sum(thing.kind == Kind.SIGNATURE for thing in objects)

    @contextlib.contextmanager
    def file_system(self) -> Iterator[Squashfs]:
        """Open its file system for the block; RequestError if it cannot be read, or is damaged."""
        with (
            open_image(self.path) as file,
            file_system_of(self.path, file, self.offset, self.root_bytes) as squashfs,
        ):
            yield squashfs


def read_foreign(path: Path) -> ForeignImage:
    """Read where the file system of an image lies.

    RequestError: it is not an image, or one that cannot be extended; the message gives the reason.
    """
    with opened(path) as file:
        start, size = file.read(_START_BYTES), os.fstat(file.fileno()).st_size
    if start[:4] == _SQUASHFS:
        return ForeignImage(path=path, size_bytes=size, offset=0, root_bytes=size)
    for offset, magic, name in _OTHER_FILE_SYSTEMS:
        if start[offset : offset + len(magic)] == magic:
            raise _refused(path, f"is a file system of the kind {name}", hint=_OTHER)
    sif = read_sif(path)
    root = _root(path, sif)
    # Objects that share bytes would be copied again and again.
    if sum(thing.size for thing in sif.objects) > size:
        raise _refused(path, "is no valid SIF: its data overlap", hint=AGAIN)
    return ForeignImage(path=path, size_bytes=size, offset=root.offset, root_bytes=root.size, sif=sif)


def is_foreign(path: Path) -> bool:
    """Whether a file is an image that can be extended, and that envbuild did not build."""
    with contextlib.suppress(RequestError):
        return not read_foreign(path).is_ours
    return False


def _root(path: Path, sif: SifFile) -> Descriptor:
    """Return the only partition of a SIF, a squashfs."""
    if any(thing.kind in _OCI_OBJECTS for thing in sif.objects):
        raise _refused(path, "is an OCI-SIF: its root is the layers of an OCI image", hint=_CONVERT)
    partitions = [thing for thing in sif.objects if thing.kind == Kind.PARTITION]
    for partition in partitions:
        if partition.filesystem != form.SQUASHFS:
            what = _PARTITIONS.get(partition.filesystem, "a file system of an unknown kind")
            raise _refused(path, f"holds {what}", hint=_OTHER)
    if len(partitions) > 1:
        raise _refused(path, f"has {len(partitions)} partitions", hint=_CONVERT)
    if not partitions or partitions[0].partition_type != PartitionType.PRIMARY:
        raise _refused(path, "has no root file system", hint=_OTHER)
    return partitions[0]


def _refused(path: Path, problem: str, *, hint: str) -> RequestError:
    return RequestError(f"`{path.name}` {problem}: it cannot be extended", at=Location(path=path), hint=hint)


def extended_bytes(image: ForeignImage, splice: Splice) -> int:
    """Return how long the file is that `write_foreign` writes, in bytes; at most a page less."""
    return image.size_bytes - image.root_bytes + form.PARTITION_ALIGNMENT + splice.size_bytes


def write_foreign(
    path: Path,
    image: ForeignImage,
    splice: Splice,
    *,
    advanced: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write an image with another file system, in place of an earlier one: all of it, or nothing.

    A SIF keeps all its other data, except signatures, which no longer hold. The same arguments give the same
    bytes. `advanced` is called with the number of bytes of each part that was copied; an error of `check`,
    which is called last, leaves `path` as it is. RequestError: nothing can be written at `path`.
    MachineError: the disk is full or fails, or the image cannot be read.
    """
    try:
        with image.path.open("rb") as source, atomic_file(path, mode=0o777, check=check) as file:
            if image.sif is None:
                splice.write(file, 0, advanced)
                return
            frame, moves, root_offset = _lay_out(source, image.sif, splice)
            for offset, size, target in moves:
                copy_range(source.fileno(), offset, size, file, target, advanced)
            splice.write(file, root_offset, advanced)
            write_at(file, frame, 0)
    except OSError as error:
        raise unwritable(path, error) from error


def _lay_out(source: BinaryIO, sif: SifFile, splice: Splice) -> tuple[bytes, list[tuple[int, int, int]], int]:
    """Place each object of a SIF, the root behind all others.

    Returns header and descriptors; of the objects besides the root where they lie, their sizes and where they
    go; and the offset of the root.
    """
    header, entries = read_frame(source)
    at = begin = form.DESCRIPTORS_OFFSET + len(entries) * form.DESCRIPTOR_BYTES
    objects = [(index, thing) for index, entry in enumerate(entries) if (thing := Descriptor.parse(entry))]
    kept: dict[int, bytes] = {}
    moves: list[tuple[int, int, int]] = []
    for index, thing in sorted(objects, key=lambda pair: pair[1].offset):
        if thing.kind in (Kind.PARTITION, Kind.SIGNATURE):
            continue
        kept[index] = form.moved(entries[index], offset=at, size=thing.size, padded_size=thing.size)
        moves.append((thing.offset, thing.size, at))
        at += thing.size
    root_offset = form.aligned(at, form.PARTITION_ALIGNMENT)
    padded_size = root_offset - at + splice.size_bytes
    for index, thing in objects:
        if thing.kind == Kind.PARTITION:
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
