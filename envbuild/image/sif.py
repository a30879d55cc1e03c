"""Images as files in the Singularity Image Format: written reproducibly, read as untrusted input.

An image is one squashfs and, behind it, the data that describe it: see `DATA`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.digests import sha256_of
from envbuild.errors import Location, RequestError
from envbuild.image import sifformat
from envbuild.image.sifformat import Descriptor, Header, Kind, PartitionType
from envbuild.quoting import shell_path

MANIFEST = "envbuild.manifest"
LOCK = "envbuild.lock"
PLAN = "envbuild.plan"
SBOM = "sbom.cdx.json"
# The facts of its files, for the rules: see `envbuild.preflight.image_facts`.
FACTS = "envbuild.facts"
# What was added to an extended image.
NOTE = "envbuild.extend"
# Of an image that was signed since: a statement in its envelope, as a signature of the SIF.
STATEMENT = "envbuild.statement"
# The name that `apptainer inspect` reads.
INSPECTION = "inspect-metadata.json"
DEFINITION, LABELS = "definition", "labels"
# Data of every image, in their order.
DATA = {
    DEFINITION: Kind.DEFINITION,
    INSPECTION: Kind.JSON,
    LABELS: Kind.LABELS,
    MANIFEST: Kind.JSON,
    LOCK: Kind.GENERIC,
    PLAN: Kind.JSON,
    SBOM: Kind.SBOM,
}
# Data that an image may have, behind all others.
OPTIONAL_DATA = (FACTS, NOTE)
FILE_SYSTEM_OFFSET = sifformat.aligned(sifformat.DATA_OFFSET, sifformat.PARTITION_ALIGNMENT)

HINT_REBUILD = "build it again, or copy it again from where it came"
"""How to replace an image that was changed or damaged."""

_DESCRIPTORS_LIMIT = 1024


# Writing


def _place_objects(sizes: Mapping[str, int], file_system_bytes: int, architecture: str) -> list[Descriptor]:
    """Place every object: the data in their order behind the file system, the optional ones last."""
    table: list[Descriptor] = []
    at = FILE_SYSTEM_OFFSET + file_system_bytes
    for number, (name, kind) in enumerate(DATA.items(), start=1):
        size = sizes[name]
        table.append(Descriptor(number=number, kind=kind, offset=at, size=size, padded_size=size, name=name))
        at += size
    table.append(
        Descriptor(
            number=len(table) + 1,
            kind=Kind.PARTITION,
            offset=FILE_SYSTEM_OFFSET,
            size=file_system_bytes,
            padded_size=FILE_SYSTEM_OFFSET - sifformat.DATA_OFFSET + file_system_bytes,
            name="root",
            filesystem=sifformat.SQUASHFS,
            partition_type=PartitionType.PRIMARY,
            architecture=architecture,
        )
    )
    for name in OPTIONAL_DATA:
        if name in sizes:
            size, number = sizes[name], len(table) + 1
            table.append(
                Descriptor(number=number, kind=Kind.JSON, offset=at, size=size, padded_size=size, name=name)
            )
            at += size
    return table


def frame_of(
    sizes: Mapping[str, int],
    digests: Mapping[str, str],
    *,
    file_system_bytes: int,
    architecture: str,
) -> bytes:
    """Return header and descriptor table: the first `DATA_OFFSET` bytes of an image.

    `sizes` and `digests` have the length in bytes and the ``sha256:…`` of all `DATA`, and of those of
    `OPTIONAL_DATA` that the image has.
    """
    table = _place_objects(sizes, file_system_bytes, architecture)
    # The identity is the digest of what `sha256sum` would print of all data.
    sums = "".join(f"{digest.removeprefix('sha256:')}  {name}\n" for name, digest in digests.items())
    header = sifformat.pack_header(
        architecture,
        identity_of(sha256_of(sums)),
        used=len(table),
        data_bytes=max(descriptor.end for descriptor in table) - sifformat.DATA_OFFSET,
    )
    head = header.ljust(sifformat.DESCRIPTORS_OFFSET, b"\0")
    return (head + b"".join(descriptor.pack() for descriptor in table)).ljust(sifformat.DATA_OFFSET, b"\0")


def identity_of(digest: str) -> uuid.UUID:
    """Return the UUID of version 8 (RFC 9562) of a digest."""
    bits = int(digest.removeprefix("sha256:")[:32], 16)
    bits = bits & ~(0xF << 76) | 8 << 76
    bits = bits & ~(0x3 << 62) | 2 << 62
    return uuid.UUID(int=bits)


# Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class SifFile:
    """The tables of a SIF; its data are read on demand."""

    size_bytes: int
    architecture: str
    """In Debian's words, or ``unknown``."""
    identity: uuid.UUID
    objects: tuple[Descriptor, ...]
    """In the order of the table; each lies inside the file."""

    def find(self, name: str) -> Descriptor | None:
        """Return the first object of a name."""
        return next((descriptor for descriptor in self.objects if descriptor.name == name), None)

    @property
    def root(self) -> Descriptor | None:
        """The partition that runtimes mount; None if there is none."""
        parts = (part for part in self.objects if part.kind == Kind.PARTITION)
        return next((part for part in parts if part.partition_type == PartitionType.PRIMARY), None)


def looks_like_sif(path: Path) -> bool:
    """Return whether a file begins as a SIF does, whole or cut; or is empty."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return not start or sifformat.MAGIC in start


def read_frame(file: BinaryIO) -> tuple[bytes, list[bytes]]:
    """Return the header of a SIF that `read_tables` has read, and all entries of its table, as stored."""
    start = os.pread(file.fileno(), sifformat.HEADER_BYTES, 0)
    header = Header.parse(start)
    table = os.pread(
        file.fileno(), header.descriptors * sifformat.DESCRIPTOR_BYTES, header.descriptors_offset
    )
    size = sifformat.DESCRIPTOR_BYTES
    return start, [table[at : at + size] for at in range(0, len(table), size)]


def read_tables(file: BinaryIO, path: Path) -> SifFile:
    """Read the tables of a SIF, which any tool may have made; `path` is for messages.

    RequestError: it is not a SIF, is cut short, or its tables are inconsistent.
    """
    size = os.fstat(file.fileno()).st_size
    start = os.pread(file.fileno(), sifformat.HEADER_BYTES, 0)
    if start[32:41] != sifformat.MAGIC:
        raise damaged(path, "is not a SIF", hint=_what_else(path, start))
    if len(start) < sifformat.HEADER_BYTES:
        raise damaged(path, f"is cut short: its header ends at byte {sifformat.HEADER_BYTES} of {size}")
    try:
        header = Header.parse(start)
    except ValueError as error:
        raise damaged(path, f"is not a SIF that this version can read: {error}") from error
    if not 0 < header.descriptors <= _DESCRIPTORS_LIMIT:
        raise damaged(path, f"is not a valid SIF: it says that it has {header.descriptors} descriptors")
    length = header.descriptors * sifformat.DESCRIPTOR_BYTES
    if header.descriptors_offset < sifformat.HEADER_BYTES:
        raise damaged(path, f"is not a valid SIF: its descriptors begin at byte {header.descriptors_offset}")
    if header.descriptors_offset + length > size:
        raise damaged(
            path, f"is cut short: its descriptors end at byte {header.descriptors_offset + length} of {size}"
        )
    _, entries = read_frame(file)
    objects = tuple(descriptor for entry in entries if (descriptor := Descriptor.parse(entry)) is not None)
    for entry in objects:
        if entry.offset < sifformat.HEADER_BYTES or entry.size < 0:
            raise damaged(
                path,
                f"is not a valid SIF: descriptor {entry.number} begins at byte {entry.offset}"
                f" and has {entry.size} bytes",
            )
        if entry.end > size:
            raise damaged(path, f"is cut short: descriptor {entry.number} ends at byte {entry.end} of {size}")
    return SifFile(
        size_bytes=size,
        architecture=header.architecture,
        identity=header.identity,
        objects=objects,
    )


def _what_else(path: Path, start: bytes) -> str:
    """Return a hint on what a file is that is not a SIF, by its name and its first bytes."""
    if path.suffix in (".yaml", ".yml"):
        image = path.with_suffix(".sif")
        return f"of a spec, `envbuild build {shell_path(path)}` makes the image `{image}`"
    kinds = {
        b"\x1f\x8b": "it is a gzip archive; ",
        b"PK\x03\x04": "it is a zip archive; ",
        b"\x7fELF": "it is a program; ",
    }
    kind = next((text for magic, text in kinds.items() if start.startswith(magic)), "")
    return f"{kind or 'it is empty; ' * (not start)}`envbuild build SPEC -o IMAGE.sif` makes an image"


def damaged(path: Path, problem: str, *, hint: str = HINT_REBUILD) -> RequestError:
    """Return the error for an image that cannot be used."""
    return RequestError(f"`{path.name}` {problem}", at=Location(path=path), hint=hint)
