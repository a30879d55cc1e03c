"""Write SIF files: equal content gives equal bytes, and a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.image import sifformat as form
from envbuild.image import startup
from envbuild.image.half import Advanced, Half, half_image, unwritable
from envbuild.image.model import Manifest, Part
from envbuild.image.sifformat import Descriptor, Header, Kind, PartitionType

MANIFEST = "envbuild.manifest"
LOCK = "envbuild.lock"
PLAN = "envbuild.plan"
SBOM = "sbom.cdx.json"
# The name under which `apptainer inspect` looks for what it shows.
_INSPECTION = "inspect-metadata.json"
_DEFINITION, _LABELS = "definition", "labels"
# The data of an image in their order; the last three come from whoever builds it, and older images have less.
DATA = {
    _DEFINITION: Kind.DEFINITION,
    _INSPECTION: Kind.JSON,
    _LABELS: Kind.LABELS,
    MANIFEST: Kind.JSON,
    LOCK: Kind.GENERIC,
    PLAN: Kind.JSON,
    SBOM: Kind.SBOM,
}

_KINDS = {"json": Kind.JSON, "generic": Kind.GENERIC, "sbom": Kind.SBOM}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataObject:
    """Data that travels in the image beside its file systems.

    Attributes
    ----------
    name : str
        `LOCK`, `PLAN`, `SBOM`, or another of at most 128 bytes; unique in the image.
    kind : str
        ``json``, ``generic`` or ``sbom`` (CycloneDX as JSON).
    """

    name: str
    content: bytes
    kind: Literal["json", "generic", "sbom"] = "generic"


def write_sif(
    path: Path,
    *,
    architecture: str,
    manifest: Manifest,
    parts: Sequence[tuple[Part, Path]],
    data: Sequence[DataObject],
    advanced: Advanced = lambda _: None,
    half: Half | None = None,
) -> None:
    """Write an image: whole, or not at all.

    Definition text, labels, manifest and what ``apptainer inspect`` shows are
    made from the manifest. The same arguments give the same bytes.

    Parameters
    ----------
    path : Path
        A file of that name is replaced; its directory must exist.
    architecture : str
        In Debian's words; the manifest's own.
    parts : sequence of (Part, Path)
        The manifest's parts in their order, with the squashfs of each.
    data : sequence of DataObject
        What else travels: lock, plan and bill of materials.
    advanced : callable
        Called with the number of bytes each time that so many were copied.
    half : Half, optional
        What `half_image` gave for the path; it may have file systems already.

    Raises
    ------
    RequestError
        Nothing can be written there: a directory, a missing or unwritable one.
    MachineError
        The disk is full or fails, or a squashfs is not what the part says.
    ValueError
        The arguments contradict each other.
    """
    if manifest.architecture != architecture or manifest.parts != tuple(part for part, _ in parts):
        raise ValueError("the manifest is of another architecture or names other parts")
    own = {
        _DEFINITION: startup.definition_text(manifest).encode(),
        _INSPECTION: startup.inspection(manifest).encode(),
        _LABELS: _labels_json(manifest),
        MANIFEST: manifest.to_json().encode(),
    }
    contents = [
        *((DATA[name], name, content) for name, content in own.items()),
        *((_KINDS[thing.kind], thing.name, thing.content) for thing in data),
    ]
    digests = {name: _sha256(content) for _, name, content in contents}
    if len(digests) != len(contents):
        raise ValueError("two data objects share a name")
    identity = identity_of(digest_of_data(digests))
    sizes = [(kind, name, len(content)) for kind, name, content in contents]
    table = lay_out(sizes, [part for part, _ in parts], architecture)
    try:
        with contextlib.nullcontext(half) if half is not None else half_image(path) as target:
            systems = table[len(contents) :]
            target.keep({descriptor.offset: descriptor.size for descriptor in systems})
            target.write(_head(table, architecture, identity), 0)
            for descriptor, (part, source) in zip(systems, parts, strict=True):
                target.copy(source, part.size_bytes, descriptor.offset, advanced)
            for descriptor, (_, _, content) in zip(table, contents, strict=False):
                target.write(content, descriptor.offset)
            target.finish()
    except OSError as error:
        raise unwritable(path, error) from error


def _labels_json(manifest: Manifest) -> bytes:
    return startup.top_files(manifest)[f"{startup.DIRECTORY}/labels.json"][0].encode()


def places(sizes_bytes: Iterable[int], start: int = form.DATA_OFFSET) -> list[int]:
    """Return where file systems begin that lie one after the other on page boundaries, in bytes."""
    found: list[int] = []
    end = start
    for size in sizes_bytes:
        found.append(form.aligned(end, form.PARTITION_ALIGNMENT))
        end = found[-1] + size
    return found


def lay_out(
    data: Sequence[tuple[Kind, str, int]],
    parts: Sequence[Part],
    architecture: str,
    *,
    data_first: bool = False,
) -> list[Descriptor]:
    """Give every object its place.

    File systems come first, on page boundaries, so that they can be copied before it is known what the
    data say of the last of them; the data follow, one after the other.

    Parameters
    ----------
    data : sequence of (Kind, str, int)
        Kind, name and length in bytes.
    data_first : bool
        As images have it that were built before this was so.

    Raises
    ------
    ValueError
        They are too many for the table.
    """
    if len(data) + len(parts) > form.DESCRIPTORS:
        raise ValueError(f"{len(data) + len(parts)} objects do not fit a table of {form.DESCRIPTORS}")
    length = sum(size for _, _, size in data)
    ends = [form.DATA_OFFSET + (length if data_first else 0)]
    offsets = places((part.size_bytes for part in parts), ends[0])
    ends += [offset + part.size_bytes for offset, part in zip(offsets, parts, strict=True)]
    table: list[Descriptor] = []
    at = form.DATA_OFFSET if data_first else ends[-1]
    for kind, name, size in data:
        number = len(table) + 1
        table.append(Descriptor(number=number, kind=kind, offset=at, size=size, padded_size=size, name=name))
        at += size
    for part, offset, end in zip(parts, offsets, ends, strict=False):
        primary = part.role == "root"
        table.append(
            Descriptor(
                number=len(table) + 1,
                kind=Kind.PARTITION,
                offset=offset,
                size=part.size_bytes,
                padded_size=offset - end + part.size_bytes,
                name=" ".join(part.layers)[:128],
                filesystem=form.SQUASHFS,
                partition_type=PartitionType.PRIMARY if primary else PartitionType.OVERLAY,
                architecture=architecture,
            )
        )
    return table


def _head(table: Sequence[Descriptor], architecture: str, identity: uuid.UUID) -> bytes:
    """Header and descriptor table, as the file begins."""
    header = Header(
        architecture=architecture,
        identity=identity,
        free=form.DESCRIPTORS - len(table),
        total=form.DESCRIPTORS,
        descriptors_offset=form.DESCRIPTORS_OFFSET,
        descriptors_bytes=form.DESCRIPTORS * form.DESCRIPTOR_BYTES,
        data_offset=form.DATA_OFFSET,
        data_bytes=max(thing.end for thing in table) - form.DATA_OFFSET,
    )
    head = header.pack().ljust(form.DESCRIPTORS_OFFSET, b"\0")
    return (head + b"".join(descriptor.pack() for descriptor in table)).ljust(form.DATA_OFFSET, b"\0")


def digest_of_data(digests: Mapping[str, str]) -> str:
    """Return the digest of all data of an image: ``sha256:…`` of what `sha256sum` would write of them.

    Parameters
    ----------
    digests : mapping of str to str
        Name → ``sha256:…``, in the order of the table.
    """
    sums = "".join(f"{digest.removeprefix('sha256:')}  {name}\n" for name, digest in digests.items())
    return _sha256(sums.encode())


def _sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def identity_of(digest: str) -> uuid.UUID:
    """Return the UUID of version 8 (RFC 9562: the maker's own) that a digest makes."""
    bits = int(digest.removeprefix("sha256:")[:32], 16)
    bits = bits & ~(0xF << 76) | 8 << 76
    bits = bits & ~(0x3 << 62) | 2 << 62
    return uuid.UUID(int=bits)
