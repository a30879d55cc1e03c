"""Writes images as files: the file system, and what lies around it, reproducibly."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.digests import sha256_of
from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.image import sifformat, startup
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.sif import (
    DATA,
    DEFINITION,
    FACTS,
    FILE_SYSTEM_OFFSET,
    INSPECTION,
    LABELS,
    MANIFEST,
    NOTE,
    STATEMENT,
    SifFile,
    damaged,
    frame_of,
    identity_of,
    read_frame,
)
from envbuild.image.sifformat import Descriptor, Kind
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import Splice
from envbuild.system.files import atomic_file, copy_range, is_full, write_at
from envbuild.system.links import real_path

# Errors that another path avoids.
_ERRORS_OF_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_HINT_PATH = "name a file in a directory of yours, with space, with `-o IMAGE.sif`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts of an image file around its file system; all offsets and sizes in bytes."""

    root_offset: int
    """Offset of the file system."""
    around: Callable[[int], tuple[bytes, bytes]]
    """Given the open file with the file system in it, return header and descriptors, at the beginning (empty
    for a bare squashfs), and the data that follow the file system."""
    copied: tuple[tuple[int, int, int, int], ...] = ()
    """Ranges of other open files: the file's descriptor, where the range lies, its size, where it goes."""


def built_layout(
    manifest: Manifest,
    data: Mapping[str, bytes],
    splice: Splice,
    *,
    note: bytes = b"",
    describe: Callable[[Squashfs], bytes] | None = None,
) -> Layout:
    """Return the layout of an image of ours: the file system, and behind it the data of `DATA`.

    `data` are `LOCK`, `PLAN` and `SBOM`; the other data are made from the manifest. `note` is `NOTE`, empty
    for an image that was not extended. `describe` returns `FACTS` of the file system as it was written, empty
    for none.
    """
    labels, _ = startup.top_files(manifest)[f"{startup.DIRECTORY}/labels.json"]
    contents = {
        DEFINITION: startup.definition_text(manifest).encode(),
        INSPECTION: startup.inspection(manifest).encode(),
        LABELS: labels.encode(),
        MANIFEST: manifest.to_json().encode(),
        **data,
    }

    def around(file: int) -> tuple[bytes, bytes]:
        facts = b""
        if describe is not None:
            with open(file, "rb", closefd=False) as written:
                facts = describe(Squashfs(written, FILE_SYSTEM_OFFSET, splice.size_bytes))
        optional = {name: content for name, content in ((FACTS, facts), (NOTE, note)) if content}
        objects = {name: contents[name] for name in DATA} | optional
        frame = frame_of(
            {name: len(content) for name, content in objects.items()},
            {name: sha256_of(content) for name, content in objects.items()},
            file_system_bytes=splice.size_bytes,
            architecture=manifest.architecture,
        )
        return frame, b"".join(objects.values())

    return Layout(root_offset=FILE_SYSTEM_OFFSET, around=around)


def kept_layout(image: ImageFile, splice: Splice) -> Layout:
    """Return the layout of an image with another file system, which lies behind all other data.

    A SIF keeps all its other data, except signatures, which no longer hold.
    """
    if image.sif is None:
        return Layout(root_offset=0, around=lambda _: (b"", b""))
    return _kept_sif(image, image.sif, splice)


def _kept_sif(image: ImageFile, sif: SifFile, splice: Splice) -> Layout:
    header, entries = read_frame(image.file)
    at = begin = sifformat.DESCRIPTORS_OFFSET + len(entries) * sifformat.DESCRIPTOR_BYTES
    objects = [
        (index, descriptor)
        for index, entry in enumerate(entries)
        if (descriptor := Descriptor.parse(entry)) is not None
    ]
    table: dict[int, bytes] = {}
    copied: list[tuple[int, int, int, int]] = []
    for index, descriptor in sorted(objects, key=lambda pair: pair[1].offset):
        if descriptor.kind in (Kind.PARTITION, Kind.SIGNATURE):
            continue
        size = descriptor.size
        table[index] = sifformat.moved(entries[index], offset=at, size=size, padded_size=size)
        copied.append((image.file.fileno(), descriptor.offset, size, at))
        at += size
    root_offset = sifformat.aligned(at, sifformat.PARTITION_ALIGNMENT)
    padded_size = root_offset - at + splice.size_bytes
    for index, descriptor in objects:
        if descriptor.kind == Kind.PARTITION:
            table[index] = sifformat.moved(
                entries[index], offset=root_offset, size=splice.size_bytes, padded_size=padded_size
            )
    head = sifformat.changed_header(
        header,
        identity=identity_of(sha256_of(sif.identity.bytes + splice.tables_digest.encode())),
        free=len(entries) - len(table),
        total=len(entries),
        data_offset=begin,
        data_bytes=root_offset + splice.size_bytes - begin,
    )
    unused = bytes(sifformat.DESCRIPTOR_BYTES)
    descriptors = b"".join(table.get(index, unused) for index in range(len(entries)))
    frame = head.ljust(sifformat.DESCRIPTORS_OFFSET, b"\0") + descriptors
    return Layout(root_offset=root_offset, around=lambda _: (frame, b""), copied=tuple(copied))


def write_image(
    path: Path,
    layout: Layout,
    splice: Splice,
    *,
    advanced: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
    create: Callable[[Path], bool] = lambda _: False,
) -> None:
    """Write an image, in place of an earlier one: all of it, or nothing.

    The same arguments give the same bytes. `advanced` is called with the number of bytes of each part that
    was copied; `check` and `create` are as in `atomic_file`. RequestError: nothing can
    be written at `path`. MachineError: the disk is full or fails, or a layer or image cannot be read.
    """
    try:
        with atomic_file(path, mode=0o777, check=check, create=create) as file:
            for source, offset, size, target in layout.copied:
                copy_range(source, offset, size, file, target, advanced)
            splice.write(file, layout.root_offset, advanced)
            frame, behind = layout.around(file)
            write_at(file, behind, layout.root_offset + splice.size_bytes)
            write_at(file, frame, 0)
    except OSError as error:
        raise unwritable(path, error) from error


def write_statements(
    path: Path,
    image: ImageFile,
    statements: Sequence[bytes],
    *,
    advanced: Callable[[int], None] = lambda _: None,
) -> None:
    """Write an image with these statements and no others, in place of the image: all of it, or nothing.

    All else is copied; signatures of other tools move to where its own data end. RequestError: its table has
    no room, or `path` cannot be written. MachineError: the disk is full or fails.
    """
    if image.sif is None:
        raise ValueError("a bare squashfs has no place for statements")
    header, table = read_frame(image.file)
    objects = {
        index: descriptor
        for index, entry in enumerate(table)
        if (descriptor := Descriptor.parse(entry)) is not None
    }
    signatures = {index: entry for index, entry in objects.items() if entry.kind == Kind.SIGNATURE}
    own_end = at = max(entry.end for index, entry in objects.items() if index not in signatures)
    copied: list[tuple[int, int, int]] = []
    for index, signature in sorted(signatures.items(), key=lambda pair: pair[1].offset):
        if signature.name == STATEMENT:
            table[index] = bytes(sifformat.DESCRIPTOR_BYTES)
            continue
        size = signature.size
        table[index] = sifformat.moved(table[index], offset=at, size=size, padded_size=size)
        copied.append((signature.offset, size, at))
        at += size
    behind = at
    free = [index for index, entry in enumerate(table) if Descriptor.parse(entry) is None]
    if len(free) < len(statements):
        raise damaged(image.path, "has no room for further signatures", hint="sign a copy without signatures")
    for index, statement in zip(free, statements, strict=False):
        size = len(statement)
        table[index] = Descriptor(
            number=index + 1,
            kind=Kind.SIGNATURE,
            group=0,
            offset=at,
            size=size,
            padded_size=size,
            name=STATEMENT,
        ).pack()
        at += size
    head = sifformat.changed_header(
        header,
        identity=image.sif.identity,
        free=len(free) - len(statements),
        total=len(table),
        data_offset=sifformat.DATA_OFFSET,
        data_bytes=at - sifformat.DATA_OFFSET,
    )
    frame = head.ljust(sifformat.DESCRIPTORS_OFFSET, b"\0") + b"".join(table)
    source = image.file.fileno()
    try:
        with atomic_file(real_path(path), check=image.check_still_there) as file:
            os.fchmod(file, stat.S_IMODE(os.fstat(source).st_mode))
            size = own_end - sifformat.DATA_OFFSET
            copy_range(source, sifformat.DATA_OFFSET, size, file, sifformat.DATA_OFFSET, advanced)
            for offset, size, target in copied:
                copy_range(source, offset, size, file, target)
            write_at(file, b"".join(statements), behind)
            write_at(file, frame, 0)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> EnvbuildError:
    """Return the error for an image that cannot be written at its place."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return RequestError(f"the directory `{path.parent}` does not exist", hint=_HINT_PATH)
    if is_full(error):
        return MachineError(f"there is no space for `{path}`: {error.strerror}", hint=_HINT_PATH)
    if error.errno in _ERRORS_OF_PATH:
        return RequestError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT_PATH)
    return MachineError(f"`{path}` cannot be written: {error.strerror}", hint=_HINT_PATH)
