"""Write SIF files: equal content gives equal bytes, and a failure leaves nothing behind."""

from __future__ import annotations

import errno
import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.image import sifformat as form
from envbuild.image import startup
from envbuild.image.model import Manifest
from envbuild.image.sifformat import Descriptor, Header, Kind, PartitionType
from envbuild.squashfs.splice import Splice
from envbuild.system.files import is_full, write_at
from envbuild.system.leftovers import atomic_file

MANIFEST = "envbuild.manifest"
LOCK = "envbuild.lock"
PLAN = "envbuild.plan"
SBOM = "sbom.cdx.json"
# The name under which `apptainer inspect` looks for what it shows.
_INSPECTION = "inspect-metadata.json"
_DEFINITION, _LABELS = "definition", "labels"
# All data of an image, in their order; they lie behind its file system.
DATA = {
    _DEFINITION: Kind.DEFINITION,
    _INSPECTION: Kind.JSON,
    _LABELS: Kind.LABELS,
    MANIFEST: Kind.JSON,
    LOCK: Kind.GENERIC,
    PLAN: Kind.JSON,
    SBOM: Kind.SBOM,
}
FILE_SYSTEM_OFFSET = form.aligned(form.DATA_OFFSET, form.PARTITION_ALIGNMENT)
_FILE_SYSTEM = "root"
# Errors that another place does not have.
_OF_THE_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_HINT = "name a file in a directory of yours, with space, with `-o IMAGE.sif`"


def write_sif(
    path: Path,
    manifest: Manifest,
    splice: Splice,
    data: Mapping[str, bytes],
    *,
    advanced: Callable[[int], None] = lambda _: None,
) -> None:
    """Write an image: whole, or not at all.

    Definition text, labels, manifest and what ``apptainer inspect`` shows are made from the manifest. The
    same arguments give the same bytes.

    Parameters
    ----------
    path : Path
        A file of that name is replaced; its directory must exist.
    splice : Splice
        Its file system, which the manifest describes.
    data : mapping of str to bytes
        `LOCK`, `PLAN` and `SBOM`.
    advanced : callable
        Called with the number of bytes each time that so many were copied.

    Raises
    ------
    RequestError
        Nothing can be written there: a directory, a missing or unwritable one.
    MachineError
        The disk is full or fails, or a layer cannot be read.
    """
    contents = {**described(manifest), **data}
    digests = {name: _sha256(contents[name]) for name in DATA}
    table = lay_out({name: len(contents[name]) for name in DATA}, splice.size_bytes, manifest.architecture)
    identity = identity_of(digest_of_data(digests))
    try:
        with atomic_file(path, mode=0o777) as file:
            splice.write(file, FILE_SYSTEM_OFFSET, advanced)
            for descriptor in table:
                if descriptor.kind != Kind.PARTITION:
                    write_at(file, contents[descriptor.name], descriptor.offset)
            write_at(file, _head(table, manifest.architecture, identity), 0)
    except OSError as error:
        raise _unwritable(path, error) from error


def described(manifest: Manifest) -> dict[str, bytes]:
    """Return the data of an image that are made from its manifest: name → content."""
    labels, _ = startup.top_files(manifest)[f"{startup.DIRECTORY}/labels.json"]
    return {
        _DEFINITION: startup.definition_text(manifest).encode(),
        _INSPECTION: startup.inspection(manifest).encode(),
        _LABELS: labels.encode(),
        MANIFEST: manifest.to_json().encode(),
    }


def lay_out(sizes: Mapping[str, int], file_system_bytes: int, architecture: str) -> list[Descriptor]:
    """Give every object its place: the data in their order behind the file system.

    Parameters
    ----------
    sizes : mapping of str to int
        Name → length in bytes, of all `DATA`.
    """
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
            padded_size=FILE_SYSTEM_OFFSET - form.DATA_OFFSET + file_system_bytes,
            name=_FILE_SYSTEM,
            filesystem=form.SQUASHFS,
            partition_type=PartitionType.PRIMARY,
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


def _unwritable(path: Path, error: OSError) -> EnvbuildError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return RequestError(f"the directory `{path.parent}` does not exist", hint=_HINT)
    if is_full(error):
        return MachineError(f"there is no space for `{path}`: {error.strerror}", hint=_HINT)
    if error.errno in _OF_THE_PLACE:
        return RequestError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT)
    return MachineError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT)
