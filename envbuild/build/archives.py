"""Read untrusted tar archives and squashfs file systems, entry by entry.

Headers cannot make it read an unlimited amount into memory.

Source: tarfile's own reader for the formats; xz, gzip, bzip2 and zstd by their magic numbers.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from envbuild.build.unpack import RootLimits, UnsafeArchiveError, Writer
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Squashfs

_CHUNK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 27
_XZ_MEMORY_BYTES = 1 << 28
_MAX_HEADER_BYTES = 1 << 20
# Of one member, which may have several headers.
_MAX_HEADERS_BYTES = 2 << 20
_BLOCK = 512


def unpack_tar(archive: Path, writer: Writer, work: Path, limits: RootLimits, *, is_layer: bool) -> None:
    """Write the content of a tar archive; UnsafeArchiveError if it is damaged or rejected.

    The decompressed archive lies in `work` meanwhile. In an OCI layer (`is_layer`), names that begin with
    ``.wh.`` hide entries below.
    """
    plain = work / "plain.tar"
    try:
        with archive.open("rb") as packed, plain.open("wb") as target:
            size = 0
            for chunk in _unpacked(packed):
                size += len(chunk)
                if size > limits.size_bytes:
                    raise UnsafeArchiveError(
                        f"it is larger than {limits.size_bytes >> 20} MiB when it is unpacked"
                    )
                target.write(chunk)
        with plain.open("rb") as stream:
            bounded = _Bounded(stream)
            with tarfile.TarFile(fileobj=bounded, encoding="utf-8") as tar:
                _write_members(tar, bounded, writer, is_layer=is_layer)
                end = tar.offset
            stream.seek(end)
            # tarfile takes an unreadable header for the end.
            if stream.read(_BLOCK) != bytes(_BLOCK):
                raise UnsafeArchiveError("it is damaged, or ends too early")
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        raise UnsafeArchiveError(f"it is damaged, or no tar archive: {error}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnsafeArchiveError(f"its headers are damaged: {type(error).__name__}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UnsafeArchiveError("its headers are damaged: they lead out of it") from None
    finally:
        plain.unlink(missing_ok=True)


def _write_members(tar: tarfile.TarFile, bounded: _Bounded, writer: Writer, *, is_layer: bool) -> None:
    while (member := bounded.next_header(tar)) is not None:
        # Otherwise they stay in memory.
        tar.members = []  # type: ignore[attr-defined]
        tar.pax_headers = {}
        name = member.name
        if member.size < 0:
            raise UnsafeArchiveError(f"`{name}` has a negative size")
        if is_layer and writer.whiteout(name):
            continue
        if member.isdir():
            writer.directory(name, member.mode)
        elif member.issym():
            writer.symlink(name, member.linkname)
        elif member.islnk():
            writer.hardlink(name, member.linkname)
        elif member.isreg():
            content = tar.extractfile(member)
            if content is None:
                raise AssertionError("a regular file has a content")
            with content:
                writer.file(name, member.mode, member.size, content)  # type: ignore[arg-type]  # it has read()
        else:
            writer.special(name)


class _Bounded(io.RawIOBase):
    """A file of which tarfile can read only as much as a member's headers may need."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # The first header is read when the archive is opened.
        self._left_bytes: int | None = _MAX_HEADERS_BYTES

    def next_header(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Read the next member's header."""
        self._left_bytes = _MAX_HEADERS_BYTES
        member = tar.next()
        self._left_bytes = None
        return member

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise UnsafeArchiveError(f"a header of it claims {size} bytes")
        if self._left_bytes is not None:
            self._left_bytes -= size
            if self._left_bytes < 0:
                raise UnsafeArchiveError(f"the headers of a member have more than {_MAX_HEADERS_BYTES} bytes")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    magic = stream.read(6)
    stream.seek(0)
    source: BinaryIO | gzip.GzipFile | bz2.BZ2File | zstandard.ZstdDecompressionReader = stream
    if magic.startswith(b"\xfd7zXZ\x00"):
        yield from _xz(stream)
        return
    if magic.startswith(b"\x1f\x8b"):
        source = gzip.GzipFile(fileobj=stream)
    elif magic.startswith(b"BZh"):
        source = bz2.BZ2File(stream)
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        source = decompressor.stream_reader(stream, read_across_frames=True)
    try:
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
    except OSError as error:
        # gzip and bz2 raise it for damage; an error of the disk has a number.
        if error.errno is not None:
            raise
        raise UnsafeArchiveError(f"it is damaged: {error}") from None


def _xz(stream: BinaryIO) -> Iterator[bytes]:
    """Decompress xz with bounded memory, which `lzma.open` has no option for."""
    rest = b""
    while True:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        while not unpacker.eof:
            if unpacker.needs_input:
                rest = rest or stream.read(_CHUNK_BYTES)
                if not rest:
                    raise EOFError("it ends too early")
            yield unpacker.decompress(rest, _CHUNK_BYTES)
            rest = b""
        # Another stream may follow, behind zeros.
        rest = unpacker.unused_data.lstrip(b"\0")
        while not rest:
            more = stream.read(_CHUNK_BYTES)
            if not more:
                return
            rest = more.lstrip(b"\0")


def unpack_squashfs(image: Path, writer: Writer, limits: RootLimits) -> None:
    """Write the content of a squashfs; UnsafeArchiveError if it is damaged, unreadable or rejected."""
    names: dict[int, str] = {}  # inode → the first name of a file or link
    try:
        with image.open("rb") as file:
            squashfs = Squashfs(file, 0, image.stat().st_size)
            if squashfs.superblock.inodes > limits.entries:
                raise UnsafeArchiveError(f"it holds {squashfs.superblock.inodes} entries")
            for entry in squashfs.walk():
                name = entry.path.removeprefix("/")
                if entry.place in names:
                    writer.hardlink(name, names[entry.place])
                elif entry.kind == "directory":
                    writer.directory(name, entry.mode)
                elif entry.kind == "link":
                    writer.symlink(name, entry.target)
                elif entry.kind == "file":
                    with squashfs.open(entry) as content:
                        writer.file(name, entry.mode, entry.size, content)
                else:
                    writer.special(name)
                if entry.kind in ("file", "link"):
                    names.setdefault(entry.place, name)
    except SquashfsError as error:
        raise UnsafeArchiveError(f"it is damaged, or no squashfs that can be read: {error}") from None
