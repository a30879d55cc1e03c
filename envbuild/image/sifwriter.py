"""Write SIF files: equal content gives equal bytes, and a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.image import sifformat as form
from envbuild.image import startup
from envbuild.image.model import Manifest, Part
from envbuild.image.sifformat import Descriptor, Header, Kind, PartitionType
from envbuild.system.leftovers import half_of

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

_SQUASHFS_MAGIC = b"hsqs"
_COPY_BYTES = 64 * 1024 * 1024
# What copy_file_range says where two file systems, or one of a kind, cannot do it.
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EIO)
_VERIFY = "`envbuild cache verify --repair` puts aside what is damaged; then build it again"
_HINT = "name a file in a directory of yours, with space, with `-o IMAGE.sif`"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_KINDS = {"json": Kind.JSON, "generic": Kind.GENERIC, "sbom": Kind.SBOM}

Advanced = Callable[[int], None]


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
    names = [name for _, name, _ in contents]
    if len(set(names)) != len(names):
        raise ValueError("two data objects share a name")
    sizes = [(kind, name, len(content)) for kind, name, content in contents]
    table = lay_out(sizes, [part for part, _ in parts], architecture)
    with _written_whole(path) as target:
        _write_all(target, _head(table, architecture, manifest), 0)
        for descriptor, (_, _, content) in zip(table, contents, strict=False):
            _write_all(target, content, descriptor.offset)
        for descriptor, (part, source) in zip(table[len(contents) :], parts, strict=True):
            _copy_part(source, part, target, descriptor.offset, advanced)


def _labels_json(manifest: Manifest) -> bytes:
    return startup.top_files(manifest)[f"{startup.DIRECTORY}/labels.json"][0].encode()


def lay_out(
    data: Sequence[tuple[Kind, str, int]], parts: Sequence[Part], architecture: str
) -> list[Descriptor]:
    """Give every object its place: data one after the other, file systems on page boundaries.

    Parameters
    ----------
    data : sequence of (Kind, str, int)
        Kind, name and length in bytes.

    Raises
    ------
    ValueError
        They are too many for the table.
    """
    table: list[Descriptor] = []
    end = form.DATA_OFFSET
    for kind, name, size in data:
        number = len(table) + 1
        table.append(Descriptor(number=number, kind=kind, offset=end, size=size, padded_size=size, name=name))
        end += size
    for part in parts:
        offset = form.aligned(end, form.PARTITION_ALIGNMENT)
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
        end = offset + part.size_bytes
    if len(table) > form.DESCRIPTORS:
        raise ValueError(f"{len(table)} objects do not fit a table of {form.DESCRIPTORS}")
    return table


def _head(table: Sequence[Descriptor], architecture: str, manifest: Manifest) -> bytes:
    """Header and descriptor table, as the file begins."""
    header = Header(
        architecture=architecture,
        identity=identity_of(manifest.digest),
        free=form.DESCRIPTORS - len(table),
        total=form.DESCRIPTORS,
        descriptors_offset=form.DESCRIPTORS_OFFSET,
        descriptors_bytes=form.DESCRIPTORS * form.DESCRIPTOR_BYTES,
        data_offset=form.DATA_OFFSET,
        data_bytes=table[-1].end - form.DATA_OFFSET,
    )
    head = header.pack().ljust(form.DESCRIPTORS_OFFSET, b"\0")
    return (head + b"".join(descriptor.pack() for descriptor in table)).ljust(form.DATA_OFFSET, b"\0")


def identity_of(digest: str) -> uuid.UUID:
    """Return the UUID of version 8 (RFC 9562: the maker's own) that a manifest's digest makes."""
    bits = int(digest.removeprefix("sha256:")[:32], 16)
    bits = bits & ~(0xF << 76) | 8 << 76
    bits = bits & ~(0x3 << 62) | 2 << 62
    return uuid.UUID(int=bits)


def _copy_part(source: Path, part: Part, target: int, offset: int, advanced: Advanced) -> None:
    """Copy a squashfs into its place; by reference where the file system can."""
    try:
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(f"the layer `{source}` cannot be read: {error.strerror}", hint=_VERIFY) from error
    try:
        size = os.fstat(file).st_size
        if size != part.size_bytes or os.pread(file, 4, 0) != _SQUASHFS_MAGIC:
            raise MachineError(
                f"`{source}` is not the squashfs of {part.size_bytes} bytes that it was",
                hint=_VERIFY,
            )
        done = 0
        while done < size:
            count = _copy_some(file, done, target, offset + done, min(_COPY_BYTES, size - done))
            if count == 0:
                raise MachineError(f"`{source}` became shorter while it was copied", hint=_VERIFY)
            done += count
            advanced(count)
    finally:
        os.close(file)


def _copy_some(source: int, start: int, target: int, offset: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, start, offset)
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
    try:
        chunk = os.pread(source, min(count, 1024 * 1024), start)
    except OSError as error:
        raise MachineError(f"a layer cannot be read: {error.strerror}", hint=_VERIFY) from error
    _write_all(target, chunk, offset)
    return len(chunk)


def _write_all(target: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        count = os.pwrite(target, view, offset)
        view, offset = view[count:], offset + count


@contextlib.contextmanager
def _written_whole(path: Path) -> Iterator[int]:
    """Give a new file beside the target, which takes its place when the block ends well."""
    try:
        if path.is_dir():
            raise RequestError(f"`{path}` is a directory", hint=_HINT)
        if path.exists() and not path.is_file():
            # Replacing /dev/null or a named pipe is never what was meant.
            raise RequestError(f"`{path}` is not a regular file", hint=_HINT)
        partial = half_of(path)
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
        partial.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems cannot; the file itself is safe by then.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> EnvbuildError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return RequestError(f"the directory `{path.parent}` does not exist", hint=_HINT)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP):
        return RequestError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT)
    if error.errno in _NO_SPACE:
        return MachineError(f"there is no space for `{path}`: {error.strerror}", hint=_HINT)
    return MachineError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT)
