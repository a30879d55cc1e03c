"""The Singularity Image Format as bytes: its header and descriptors, packed and parsed.

The layout is that of SIF version 1 (little-endian, without padding between fields), which Apptainer and
SingularityCE write and read.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from enum import IntEnum

LAUNCH = b"#!/usr/bin/env run-singularity\n"
MAGIC = b"SIF_MAGIC"
VERSION = b"01"

DESCRIPTORS = 48
DESCRIPTORS_OFFSET = 4096
PARTITION_ALIGNMENT = 4096
# The one group of an image: Apptainer mounts only overlays of the root's own group.
GROUP = 1
_GROUP_FLAG = 0xF000_0000

SQUASHFS = 1
_NAME_BYTES = 128
_EXTRA_BYTES = 384

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct(f"<i?3I7q{_NAME_BYTES}s{_EXTRA_BYTES}s")
_PARTITION = struct.Struct("<ii3s")
_SBOM = struct.Struct("<i")
_SIGNATURE = struct.Struct("<i")
_SHA256 = 1
# The code of SIF's library for a bill of materials as CycloneDX JSON.
CYCLONEDX_JSON = 1

HEADER_BYTES = _HEADER.size
# The part that never changes: `apptainer sign` sets times and counts, which follow it.
HEADER_FIXED_BYTES = _HEADER.size - 8 * 8
DESCRIPTOR_BYTES = _DESCRIPTOR.size
DATA_OFFSET = DESCRIPTORS_OFFSET + DESCRIPTORS * DESCRIPTOR_BYTES

# Debian's names of architectures → codes of the format.
_ARCHITECTURES = {
    "i386": b"01",
    "amd64": b"02",
    "armhf": b"03",
    "arm64": b"04",
    "ppc64": b"05",
    "ppc64el": b"06",
    "mips": b"07",
    "mipsel": b"08",
    "mips64": b"09",
    "mips64el": b"10",
    "s390x": b"11",
    "riscv64": b"12",
}


class Kind(IntEnum):
    """The type of a data object."""

    DEFINITION = 0x4001
    ENVIRONMENT = 0x4002
    LABELS = 0x4003
    PARTITION = 0x4004
    SIGNATURE = 0x4005
    JSON = 0x4006
    GENERIC = 0x4007
    CRYPTO = 0x4008
    SBOM = 0x4009


class PartitionType(IntEnum):
    """The purpose of a partition."""

    SYSTEM = 1
    PRIMARY = 2
    DATA = 3
    OVERLAY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields of the global header that a reader needs."""

    architecture: str
    """Architecture of the primary partition, in Debian's words; ``unknown`` for another code."""
    identity: uuid.UUID
    descriptors: int
    """Number of entries of the table, used or not."""
    descriptors_offset: int
    """Offset of the table from the start of the file, in bytes."""

    @staticmethod
    def parse(data: bytes) -> Header:
        """Read the first `HEADER_BYTES` bytes of a SIF; ValueError unless it is of version 1."""
        _, magic, version, code, identity, _, _, _, descriptors, offset, *_ = _HEADER.unpack(data)
        if magic.rstrip(b"\0") != MAGIC:
            raise ValueError("the magic is missing")
        if version.rstrip(b"\0") != VERSION:
            raise ValueError(f"its format version is {_printable(version)}, not {VERSION.decode()}")
        return Header(
            architecture=architecture_name(code),
            identity=uuid.UUID(bytes=identity),
            descriptors=descriptors,
            descriptors_offset=offset,
        )


def pack_header(architecture: str, identity: uuid.UUID, *, used: int, data_bytes: int) -> bytes:
    """Return the `HEADER_BYTES` bytes of a header whose table has `used` entries in use.

    Times are 0, so that equal content gives equal bytes.
    """
    return _HEADER.pack(
        LAUNCH,
        MAGIC,
        VERSION,
        architecture_code(architecture),
        identity.bytes,
        0,
        0,
        DESCRIPTORS - used,
        DESCRIPTORS,
        DESCRIPTORS_OFFSET,
        DESCRIPTORS * DESCRIPTOR_BYTES,
        DATA_OFFSET,
        data_bytes,
    )


def header_without_signing(frame: bytes) -> bytes:
    """Return the bytes before the descriptors without what `apptainer sign` changes: a time and counts."""
    if len(frame) < HEADER_BYTES:
        return frame  # something has cut the file meanwhile
    fields = list(_HEADER.unpack(frame[:HEADER_BYTES]))
    modified, free, data_bytes = 6, 7, 12
    for index in (modified, free, data_bytes):
        fields[index] = 0
    return _HEADER.pack(*fields) + frame[HEADER_BYTES:DESCRIPTORS_OFFSET]


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The place and type of a data object."""

    number: int
    """Id, from 1."""
    kind: int
    """A `Kind`, or an unknown number."""
    group: int = GROUP
    """Object group; 0 for none."""
    link: int = 0
    """As stored: id of the object, or group with the group flag, that it belongs to; 0 for none."""
    offset: int
    size: int
    """Offset from the start of the file, and length, in bytes."""
    padded_size: int
    """Length with the padding in front of it."""
    name: str
    """At most 128 bytes of UTF-8."""
    filesystem: int = 0
    partition_type: int = 0
    architecture: str = ""
    """Set for a partition only."""

    @property
    def end(self) -> int:
        """Offset of the first byte behind the object."""
        return self.offset + self.size

    def pack(self) -> bytes:
        """Return `DESCRIPTOR_BYTES` bytes; times and owners are 0. ValueError: the name is too long."""
        name = self.name.encode()
        if len(name) > _NAME_BYTES:
            raise ValueError(f"a name of {len(name)} bytes does not fit {_NAME_BYTES}: {self.name}")
        extra = b""
        if self.kind == Kind.PARTITION:
            extra = _PARTITION.pack(
                self.filesystem, self.partition_type, architecture_code(self.architecture)
            )
        elif self.kind == Kind.SBOM:
            extra = _SBOM.pack(CYCLONEDX_JSON)
        elif self.kind == Kind.SIGNATURE:
            extra = _SIGNATURE.pack(_SHA256)
        times_and_owners = (0, 0, 0, 0)
        return _DESCRIPTOR.pack(
            self.kind,
            True,
            self.number,
            _GROUP_FLAG | self.group,
            self.link,
            self.offset,
            self.size,
            self.padded_size,
            *times_and_owners,
            name,
            extra,
        )

    @staticmethod
    def parse(data: bytes) -> Descriptor | None:
        """Read one entry of the table; None if it is unused."""
        kind, used, number, group, link, offset, size, padded_size, _, _, _, _, name, extra = (
            _DESCRIPTOR.unpack(data)
        )
        if not used:
            return None
        filesystem, partition_type, code = 0, 0, b""
        if kind == Kind.PARTITION:
            filesystem, partition_type, code = _PARTITION.unpack_from(extra)
        return Descriptor(
            number=number,
            kind=kind,
            group=group & ~_GROUP_FLAG,
            link=link,
            offset=offset,
            size=size,
            padded_size=padded_size,
            name=_printable(name),
            filesystem=filesystem,
            partition_type=partition_type,
            architecture=architecture_name(code) if code else "",
        )


def changed_header(
    header: bytes, *, identity: uuid.UUID, free: int, total: int, data_offset: int, data_bytes: int
) -> bytes:
    """Return a header with its descriptors at `DESCRIPTORS_OFFSET`; all else of it, also times, is kept."""
    launch, magic, version, code, _, created, modified, *_ = _HEADER.unpack(header)
    offsets = (DESCRIPTORS_OFFSET, total * DESCRIPTOR_BYTES, data_offset, data_bytes)
    return _HEADER.pack(
        launch, magic, version, code, identity.bytes, created, modified, free, total, *offsets
    )


def moved(descriptor: bytes, *, offset: int, size: int, padded_size: int) -> bytes:
    """Return a descriptor of an object that lies elsewhere, or has another length; all else is kept."""
    kind, used, number, group, link, _, _, _, *rest = _DESCRIPTOR.unpack(descriptor)
    return _DESCRIPTOR.pack(kind, used, number, group, link, offset, size, padded_size, *rest)


def architecture_code(name: str) -> bytes:
    """Return the format's two digits for an architecture in Debian's words; ValueError if it has none."""
    try:
        return _ARCHITECTURES[name]
    except KeyError:
        raise ValueError(f"SIF has no code for the architecture `{name}`") from None


def architecture_name(code: bytes) -> str:
    """Return Debian's name for a code, or ``unknown``."""
    digits = code.rstrip(b"\0")
    return next((name for name, number in _ARCHITECTURES.items() if number == digits), "unknown")


def aligned(offset: int, alignment: int) -> int:
    """Return the first multiple of `alignment` that is not below `offset`, both in bytes."""
    return -(-offset // alignment) * alignment


def _printable(field: bytes) -> str:
    """Return the text of an untrusted field, safe to print on a terminal."""
    text = field.partition(b"\0")[0].decode(errors="replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
