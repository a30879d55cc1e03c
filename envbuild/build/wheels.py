"""Say which files a wheel installs, as PyPA's installer decides it; their content stays in the wheel.

Sources: the wheel format (PEP 427); zip's APPNOTE, 4.3.7 (the header of a member).
"""

from __future__ import annotations

import csv
import hashlib
import os
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from zlib_ng import zlib_ng

from envbuild.errors import BuildError
from envbuild.squashfs.writer import Content, Stream
from envbuild.system import process
from envbuild.system.files import sha256

if TYPE_CHECKING:
    from envbuild.build.wheel_destination import InstalledFile, InstalledWheel

# The 375 wheels of a large environment unpack to at most 7 times their size; deflate allows 1,000 times.
_MAX_RATIO = 100
_FREE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_MEMBER_HEADER = struct.Struct("<26xHH")


def read_wheel(wheel: Path, scheme: Mapping[str, str], *, python: str) -> InstalledWheel:
    """Return what a verified wheel installs into the directories of an installation scheme.

    `scheme` has absolute paths of the image for ``purelib``, ``platlib``, ``scripts``, ``data`` and
    ``headers``; `python` runs the wheel's scripts there.
    BuildError: the wheel is malformed, or would write outside of these directories.
    """
    # Imported late: most commands do not need it.
    from installer import install  # noqa: PLC0415
    from installer.sources import WheelFile  # noqa: PLC0415

    from envbuild.build.wheel_destination import Destination  # noqa: PLC0415

    try:
        with warnings.catch_warnings(), zipfile.ZipFile(wheel) as archive:
            # Those of installer are about the wheel, but name lines of this file.
            warnings.simplefilter("ignore")
            _check_size(wheel, archive)
            _check_record(archive)
            destination = Destination(scheme, python, lambda name: _Member(wheel, archive.getinfo(name)))
            install(WheelFile(archive), destination, additional_metadata={"INSTALLER": b"envbuild\n"})
            return destination.installed
    except BuildError:
        raise
    except Exception as error:  # a malformed wheel can raise anything
        raise _not_unpacked(wheel, error) from error


def unpack_wheel(wheel: Path, scheme: Mapping[str, str], root: Path, *, python: str) -> None:
    """Write what a wheel installs below a directory, which is made if absent.

    Raises as `read_wheel`, also if a file of other bytes is in the place of one of the wheel's.
    """
    installed = read_wheel(wheel, scheme, python=python)
    try:
        digests = {file.path: _write(file, root) for file in installed.files}
        _write(installed.record(digests), root)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _not_unpacked(wheel, error) from error


def _not_unpacked(wheel: Path, error: Exception) -> BuildError:
    return BuildError(
        f"the wheel `{wheel.name}` could not be unpacked: {error}",
        hint="pin another version of it under `packages.python` of the spec, or build a wheel of your own"
        " again: `pip wheel` and `python -m build` write its list of files",
    )


def _check_size(wheel: Path, archive: zipfile.ZipFile) -> None:
    """Reject a wheel that unpacks to far more than any real one; no more is read than it declares."""
    size_bytes = sum(entry.file_size for entry in archive.infolist())
    if size_bytes > _MAX_RATIO * wheel.stat().st_size + _FREE_BYTES:
        raise ValueError(f"it has {wheel.stat().st_size} bytes and would unpack to {size_bytes}")


def _check_record(archive: zipfile.ZipFile) -> None:
    """Raise a ValueError for a wheel whose list of files cannot be read; installer's own says less."""
    names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if "/" in name}
    directories = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(directories) != 1:
        found = ", ".join(f"`{name}`" for name in directories) or "none"
        raise ValueError(f"a wheel has one directory `NAME-VERSION.dist-info`, and this one has {found}")
    record = f"{directories[0]}/RECORD"
    for name in (record, f"{directories[0]}/METADATA", f"{directories[0]}/WHEEL"):
        if name not in names:
            raise ValueError(f"it has no `{name}`")
    text = archive.read(record).decode()
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if row and len(row) != 3:
            raise ValueError(
                f"line {number} of `{record}` has {len(row)} columns, not path, digest and size:"
                " a path with a comma has to be in quotes"
            )


def _write(file: InstalledFile, root: Path) -> str:
    """Write a file below a directory; return the digest of its content."""
    path = root / file.path
    for parent in reversed(path.relative_to(root).parents):
        if not (root / parent).is_dir():
            (root / parent).mkdir(parents=True)
            (root / parent).chmod(0o755)
    try:
        target = path.open("xb")
    except FileExistsError:
        # Wheels of one project bring its licences each.
        with Path(os.devnull).open("wb") as nowhere:
            digest = copy_content(file.content, nowhere)
        if path.is_symlink() or not path.is_file() or sha256(path) != digest:
            raise
        return digest
    with target:
        digest = copy_content(file.content, target)
    path.chmod(file.mode)
    return digest


def copy_content(content: Content, target: BinaryIO) -> str:
    """Copy a file's content to an open file; return its digest in hexadecimal digits (SHA-256)."""
    sha256, left = hashlib.sha256(), content.size_bytes
    with content.open() as stream:
        while left and (chunk := stream.read(min(left, _CHUNK_BYTES))):
            sha256.update(chunk)
            target.write(chunk)
            left -= len(chunk)
    return sha256.hexdigest()


@dataclass(frozen=True, slots=True)
class _Member:
    """The content of a file in a wheel."""

    wheel: Path
    info: zipfile.ZipInfo

    @property
    def size_bytes(self) -> int:
        return self.info.file_size

    @contextmanager
    def open(self) -> Iterator[Stream]:
        """Yield its content; reading raises a BuildError if it is damaged."""
        if process.is_shutting_down():
            raise KeyboardInterrupt
        if self.info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with self.wheel.open("rb", buffering=0) as file:
                yield _MemberStream(self, _Inflater(file.fileno(), self.info))
        else:
            with zipfile.ZipFile(self.wheel) as archive, archive.open(self.info) as stream:
                yield _MemberStream(self, stream)


class _MemberStream:
    """Reads a member, and says which wheel is at fault if that fails."""

    def __init__(self, member: _Member, stream: Stream) -> None:
        self._member, self._stream = member, stream
        self._left = member.size_bytes
        self._crc = 0

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        try:
            block = self._stream.read(size)
            self._left -= len(block)
            self._crc = zlib_ng.crc32(block, self._crc)
            name = self._member.info.filename
            if len(block) < size:
                raise ValueError(f"{name!r} is cut short")
            if not self._left and self._crc != self._member.info.CRC:
                raise ValueError(f"{name!r} is damaged: its checksum is another")
        except Exception as error:  # a malformed wheel can raise anything
            raise _not_unpacked(self._member.wheel, error) from error
        return block


class _Inflater:
    """Reads a member that is stored or deflated, in half of the time of Python's zlib."""

    def __init__(self, file: int, info: zipfile.ZipInfo) -> None:
        self._file, self._left = file, info.compress_size
        # `zipfile` has compared the header with the list of members.
        name_bytes, extra_bytes = _MEMBER_HEADER.unpack(
            os.pread(file, _MEMBER_HEADER.size, info.header_offset)
        )
        self._at = info.header_offset + _MEMBER_HEADER.size + name_bytes + extra_bytes
        is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
        self._decompressor = zlib_ng.decompressobj(-zlib_ng.MAX_WBITS) if is_deflated else None

    def read(self, size: int) -> bytes:
        if self._decompressor is None:
            return self._take(size)
        block = bytearray()
        while len(block) < size:
            data = self._decompressor.unconsumed_tail or self._take(_CHUNK_BYTES)
            piece = self._decompressor.decompress(data, size - len(block))
            if len(piece) == size:
                return piece
            if not data and not piece:
                break
            block += piece
        return bytes(block)

    def _take(self, size: int) -> bytes:
        data = os.pread(self._file, min(size, self._left), self._at)
        self._at += len(data)
        self._left -= len(data)
        return data
