"""Compares an image with its manifest, byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

from envbuild.errors import Location, RequestError
from envbuild.image import sifformat
from envbuild.image.file import ImageFile
from envbuild.image.model import FileSystem
from envbuild.image.sif import DATA, FILE_SYSTEM_OFFSET, HINT_REBUILD, LOCK, OPTIONAL_DATA, frame_of
from envbuild.image.sifformat import Descriptor, Kind
from envbuild.jobs.report import CheckResult
from envbuild.squashfs.format import SUPERBLOCK_BYTES

Advanced = Callable[[int], None]

DIGEST = "image.digest"
_CHUNK_BYTES = 1 << 20
_THE_HEADER = (
    "the header, or the data that its identity is made from: manifest, plan, bill of materials, facts,"
    " labels or definition"
)


def verify_image(image: ImageFile, *, advanced: Advanced = lambda _: None) -> tuple[str, ...]:
    """Read all of an image; return which parts have changed since it was written, in words.

    Signatures do not count. `advanced` is called with the number of bytes of each part read.
    """
    return (*changed_file_system(image, advanced=advanced), *changed_around(image))


def check_image_is_whole(image: ImageFile, *, advanced: Advanced = lambda _: None) -> None:
    """Raise a RequestError if an image has changed since it was written."""
    _refuse(image, verify_image(image, advanced=advanced))


def check_around(image: ImageFile) -> None:
    """Raise a RequestError if anything in an image but its file system has changed."""
    _refuse(image, changed_around(image))


def _refuse(image: ImageFile, changed: Sequence[str]) -> None:
    if changed:
        problem = f"`{image.path.name}` was changed or damaged: {', '.join(changed)}"
        raise RequestError(problem, at=Location(path=image.path), hint=HINT_REBUILD)


def changed_file_system(image: ImageFile, *, advanced: Advanced = lambda _: None) -> tuple[str, ...]:
    """Return which layers of an image have changed since it was written, and whether its tables have."""
    system, root = image.manifest.file_system, image.sif.root if image.sif else None
    if system is None or root is None or root.size != system.size_bytes:
        return ("its file system",)
    return tuple(_changed(image, root.offset, system, advanced))


def tables_are_right(image: ImageFile) -> bool:
    """Return whether an image has a file system with the tables of its manifest; reads little of it."""
    system, root = image.manifest.file_system, image.sif.root if image.sif else None
    if system is None or root is None or root.size != system.size_bytes:
        return False
    return _tables(image, root.offset, system) == system.tables


def _changed(image: ImageFile, offset: int, system: FileSystem, advanced: Advanced) -> Iterator[str]:
    end = SUPERBLOCK_BYTES
    padding_changed = False
    for layer in system.placed_layers:
        padding_changed |= any(image.read(offset + end, layer.offset - end))
        if image.digest_of(offset + layer.offset, layer.size_bytes, advanced) != layer.data:
            yield f"layer {layer.name}"
        end = layer.offset + layer.size_bytes
    if padding_changed or end != system.tables_offset or _tables(image, offset, system) != system.tables:
        yield "the tables of its file system"


def _tables(image: ImageFile, offset: int, system: FileSystem) -> str:
    """Return the digest of superblock and tables, as `digest_of_tables`; a manifest may say any sizes."""
    digest = hashlib.sha256(image.read(offset, SUPERBLOCK_BYTES))
    at, end = offset + system.tables_offset, offset + system.size_bytes
    while at < end and (chunk := image.read(at, min(_CHUNK_BYTES, end - at))):
        digest.update(chunk)
        at += len(chunk)
    return f"sha256:{digest.hexdigest()}"


def changed_around(image: ImageFile) -> tuple[str, ...]:
    """Return which parts besides the file system have changed since the image was written, in words.

    The identity in the header is a digest of all data, and the manifest has the digest of the lock. Nothing
    may have been added but signatures: a runtime mounts a further partition above the file system.
    """
    manifest, stored = image.manifest, image.sif.objects if image.sif else ()
    by_name = {descriptor.name: descriptor for descriptor in reversed(stored)}
    objects = {name: by_name[name] for name in (*DATA, *OPTIONAL_DATA) if name in by_name}
    digests = {
        name: image.digest_of(descriptor.offset, descriptor.size) for name, descriptor in objects.items()
    }
    try:
        # Computed with the manifest's lock, so that a changed lock alone is not also a changed header.
        written = frame_of(
            dict.fromkeys(DATA, 0) | {name: descriptor.size for name, descriptor in objects.items()},
            {**digests, LOCK: manifest.lock_digest},
            file_system_bytes=manifest.file_system.size_bytes if manifest.file_system else 0,
            architecture=manifest.architecture,
        )
    except ValueError:
        return (_THE_HEADER,)  # SIF has no code for the manifest's architecture
    frame = image.read(0, len(written))
    if len(frame) < len(written):
        return (_THE_HEADER,)  # it has become shorter since its tables were read
    changed = []
    if sifformat.header_without_signing(frame) != sifformat.header_without_signing(written):
        changed.append(_THE_HEADER)
    own = len(DATA) + 1 + sum(name in objects for name in OPTIONAL_DATA)
    table = slice(
        sifformat.DESCRIPTORS_OFFSET, sifformat.DESCRIPTORS_OFFSET + own * sifformat.DESCRIPTOR_BYTES
    )
    if frame[table] != written[table]:
        changed.append("the table of descriptors")
    if digests.get(LOCK) != manifest.lock_digest:
        changed.append("the lock")
    if _has_additions(image, stored[:own], stored[own:], frame[table.stop :]):
        changed.append("objects or bytes that were added")
    return tuple(changed)


def _has_additions(
    image: ImageFile, own: Sequence[Descriptor], others: Sequence[Descriptor], rest_of_table: bytes
) -> bool:
    """Return whether a SIF has more than the objects that envbuild wrote, `own`, and signatures.

    `rest_of_table` follows the entries of `own`.
    """
    size = sifformat.DESCRIPTOR_BYTES
    entries = [rest_of_table[at : at + size] for at in range(0, len(rest_of_table), size)]
    if any(descriptor.kind != Kind.SIGNATURE for descriptor in others):
        return True
    # An unused entry may hide an object from readers that look at it all the same.
    if sum(any(entry) for entry in entries) != len(others):
        return True
    if any(image.read(sifformat.DATA_OFFSET, FILE_SYSTEM_OFFSET - sifformat.DATA_OFFSET)):
        return True
    end = max((descriptor.end for descriptor in own), default=0)
    for signature in sorted(others, key=lambda descriptor: descriptor.offset):
        padding = signature.offset - end
        if not 0 <= padding < sifformat.PARTITION_ALIGNMENT or any(image.read(end, padding)):
            return True
        end = signature.end
    return end != image.size_bytes


def judge_bytes(changed: Sequence[str]) -> CheckResult:
    """Return the check that an image is the one that was built, given the result of `verify_image`."""
    expected = "all parts as built"
    if changed:
        return CheckResult("FAIL", DIGEST, expected, ", ".join(changed), HINT_REBUILD)
    return CheckResult("PASS", DIGEST, expected, expected)
