"""Read SIF files with the care that a stranger's file needs: images, and what they say of themselves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.image import sifformat as form
from envbuild.image.model import Manifest
from envbuild.image.sifformat import Descriptor, Header, Kind, PartitionType
from envbuild.image.sifwriter import LOCK, MANIFEST, PLAN, SBOM

__all__ = [
    "LOCK",
    "MANIFEST",
    "PLAN",
    "SBOM",
    "SifFile",
    "digest_of",
    "looks_like_sif",
    "read_data",
    "read_manifest",
    "read_sif",
]

_READ_BYTES = 1024 * 1024
# More than this is no lock, plan or manifest, and no table of an image.
_DATA_LIMIT_BYTES = 64 * 1024 * 1024
_DESCRIPTORS_LIMIT = 1024


_ANEW = "it was cut or changed, or something else made it: copy it again, or build it anew"
_NAME = "name an image, a file: `envbuild build SPEC -o IMAGE.sif` makes one"


@dataclass(frozen=True, slots=True, kw_only=True)
class SifFile:
    """What a SIF holds; its data are read when asked for.

    Attributes
    ----------
    size_bytes : int
        Length of the file.
    architecture : str
        In Debian's words, or ``unknown``.
    objects : tuple of Descriptor
        In the order of the table; each lies inside the file.
    """

    path: Path
    size_bytes: int
    architecture: str
    identity: uuid.UUID
    objects: tuple[Descriptor, ...]

    def find(self, name: str) -> Descriptor | None:
        """Return the first object of a name."""
        return next((thing for thing in self.objects if thing.name == name), None)

    @property
    def root(self) -> Descriptor | None:
        """The partition that runtimes mount; None if there is none."""
        parts = (thing for thing in self.objects if thing.kind == Kind.PARTITION)
        return next((part for part in parts if part.partition_type == PartitionType.PRIMARY), None)


def read_sif(path: Path) -> SifFile:
    """Read what a SIF holds, without its data; any that Apptainer makes will do.

    Raises
    ------
    RequestError
        It cannot be read, is no SIF, is cut short, or its tables contradict each other.
    """
    with _opened(path) as file:
        return _read_tables(file, path)


def looks_like_sif(path: Path) -> bool:
    """Return whether a file begins as a SIF does, whole or cut; an empty one may become one."""
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return not start or form.MAGIC in start


def read_manifest(path: Path) -> Manifest:
    """Return what an image says of itself, every value checked.

    Raises
    ------
    RequestError
        As `read_sif`; or envbuild did not build it, or not a version that this one knows.
    """
    try:
        return Manifest.from_json(read_data(path, MANIFEST).decode())
    except ValueError as error:
        raise RequestError(
            f"the manifest in `{path.name}` cannot be used: {error}",
            at=Location(path=path),
            hint="build the image again, or use the version of envbuild that built it",
        ) from error


def read_data(path: Path, name: str) -> bytes:
    """Return a data object of an image that envbuild built: `MANIFEST`, `LOCK`, `PLAN`, `SBOM`.

    Raises
    ------
    RequestError
        As `read_sif`; or envbuild did not build it, or it holds no such object.
    """
    with _opened(path) as file:
        sif = _read_tables(file, path)
        found = sif.find(name)
        if sif.find(MANIFEST) is None:
            raise _broken(
                path,
                "is a SIF that envbuild did not build",
                hint="`apptainer inspect` shows what it says of itself",
            )
        if found is None:
            raise _broken(path, f"holds no `{name}`")
        if found.kind not in (Kind.JSON, Kind.GENERIC, Kind.SBOM):
            raise _broken(path, f"holds something else than data under the name `{name}`")
        if found.size > _DATA_LIMIT_BYTES:
            raise _broken(path, f"says that its `{name}` has {found.size} bytes, which is too much")
        return os.pread(file, found.size, found.offset)


def _read_tables(file: int, path: Path) -> SifFile:
    size = os.fstat(file).st_size
    start = os.pread(file, form.HEADER_BYTES, 0)
    if start[32:41] != form.MAGIC:
        raise _broken(path, "is not a SIF", hint=_what_else(start))
    if len(start) < form.HEADER_BYTES:
        raise _broken(path, f"is cut short: its header ends at byte {form.HEADER_BYTES} of {size}")
    try:
        header = Header.parse(start)
    except ValueError as error:
        raise _broken(path, f"is not a SIF that this version can read: {error}") from error
    if not 0 < header.total <= _DESCRIPTORS_LIMIT:
        raise _broken(path, f"is no valid SIF: it says that it has {header.total} descriptors")
    length = header.total * form.DESCRIPTOR_BYTES
    if header.descriptors_offset < form.HEADER_BYTES:
        raise _broken(path, f"is no valid SIF: its descriptors begin at byte {header.descriptors_offset}")
    if header.descriptors_offset + length > size:
        raise _broken(
            path, f"is cut short: its descriptors end at byte {header.descriptors_offset + length} of {size}"
        )
    table = os.pread(file, length, header.descriptors_offset)
    entries = (
        Descriptor.parse(table[at : at + form.DESCRIPTOR_BYTES])
        for at in range(0, len(table), form.DESCRIPTOR_BYTES)
    )
    objects = tuple(entry for entry in entries if entry is not None)
    for thing in objects:
        if thing.offset < form.HEADER_BYTES or thing.size < 0:
            raise _broken(
                path,
                f"is no valid SIF: descriptor {thing.number} begins at byte {thing.offset}"
                f" and has {thing.size} bytes",
            )
        if thing.end > size:
            raise _broken(path, f"is cut short: descriptor {thing.number} ends at byte {thing.end} of {size}")
    return SifFile(
        path=path,
        size_bytes=size,
        architecture=header.architecture,
        identity=header.identity,
        objects=objects,
    )


def digest_of(file: int, offset: int, size: int, advanced: Callable[[int], None] = lambda _: None) -> str:
    """Return the digest of a part of a file: ``sha256:…``.

    Parameters
    ----------
    file : int
        Open for reading.
    offset, size : int
        Where the part begins, and its length, in bytes.
    advanced : callable
        Called with the number of bytes each time that so many were read.
    """
    digest, end = hashlib.sha256(), offset + size
    while offset < end:
        chunk = os.pread(file, min(_READ_BYTES, end - offset), offset)
        if not chunk:
            break  # cut while we read: the digest will differ
        digest.update(chunk)
        offset += len(chunk)
        advanced(len(chunk))
    return "sha256:" + digest.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        # Not blocking, so that a named pipe is refused rather than waited for.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise RequestError(
            f"there is no image `{path}`", hint="`envbuild build SPEC -o IMAGE.sif` makes one"
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RequestError(
            f"`{path}` cannot be read: {reason}", hint="see that it is a file, and may be read by you"
        ) from error
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise _broken(path, "is a directory, not a SIF", hint=_NAME)
        if not stat.S_ISREG(mode):
            raise _broken(path, "is not a regular file", hint=_NAME)
        yield file
    except OSError as error:
        raise RequestError(
            f"`{path}` cannot be read: {error.strerror}",
            hint="see that its file system answers, and read it again",
        ) from error
    finally:
        os.close(file)


def _what_else(start: bytes) -> str:
    """Say what a file is that is no SIF, as far as its first bytes tell."""
    known = {
        b"hsqs": "it is a squashfs without the rest of an image; ",
        b"\x1f\x8b": "it is a gzip archive; ",
        b"PK\x03\x04": "it is a zip archive; ",
        b"\x7fELF": "it is a program; ",
    }
    what = next((text for magic, text in known.items() if start.startswith(magic)), "")
    return f"{what or 'it is empty; ' * (not start)}`envbuild build SPEC -o IMAGE.sif` makes an image"


def _broken(path: Path, problem: str, *, hint: str | None = None) -> RequestError:
    return RequestError(f"`{path.name}` {problem}", at=Location(path=path), hint=hint or _ANEW)
