"""Reads the members of tar archives that come from strangers.

`tarfile` reads each header as a whole. The headers of a member have limits here, and the records of a pax
header are checked first: without a fix, its patterns take quadratic time and memory for some. Archives are
unpacked as they are read, so that none needs space for its unpacked bytes.

Source: POSIX, "pax Header Block"; CVE-2024-6232; xz, gzip, bzip2 and zstd by their magic numbers.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import zstandard

# Of a whole root, unpacked: vendors' images have up to 45 GB.
MAX_ROOT_BYTES = 64 << 30
MAX_ROOT_ENTRIES = 1_000_000
MAX_HEADER_BYTES = 1 << 20
# Of one member, which may have several headers.
MAX_HEADERS_BYTES = 2 << 20
_BLOCK = 512
_CHUNK_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 27
_XZ_MEMORY_BYTES = 1 << 28
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_RECORD = re.compile(rb"([0-9]{1,7}) [^=\n]")
_MANY_DIGITS = re.compile(rb"[0-9]{256}")


class UnsafeArchiveError(Exception):
    """An archive is damaged or unsafe; the message says what is wrong, and in which entry."""


class HeaderError(tarfile.TarError):
    """The headers of an archive are malformed, or larger than any archive needs."""


class TarMembers:
    """The members of an archive, each forgotten when the next is read.

    `stream` need not seek backwards. tarfile.TarError, EOFError, RecursionError, ValueError: it is malformed.
    """

    def __init__(self, stream: BinaryIO | io.BufferedIOBase | io.RawIOBase) -> None:
        self._headers = _Headers(stream)
        self._tar = tarfile.TarFile(fileobj=self._headers, encoding="utf-8")

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        while (member := self._headers.of_next_member(self._tar)) is not None:
            # Otherwise they stay in memory.
            self._tar.members = []  # type: ignore[attr-defined]
            self._tar.pax_headers = {}
            if member.size < 0:
                raise HeaderError(f"`{member.name}` has a negative size")
            yield member

    @property
    def offset(self) -> int:
        """Offset of the next header."""
        return int(self._tar.offset)

    @property
    def have_ended(self) -> bool:
        """Whether the header that was read last is the end of an archive, and not one that is unreadable."""
        return self._headers.last == bytes(_BLOCK)

    def open(self, member: tarfile.TarInfo) -> IO[bytes]:
        """Return the content of a regular file."""
        content = self._tar.extractfile(member)
        if content is None:
            raise AssertionError("a regular file has a content")
        return content


class _Headers(io.RawIOBase):
    """A file of which tarfile can read only as much as a member's headers may need."""

    def __init__(self, stream: BinaryIO | io.BufferedIOBase | io.RawIOBase) -> None:
        self._stream = stream
        # The first header is read when the archive is opened.
        self._left_bytes: int | None = MAX_HEADERS_BYTES
        self._pax_bytes = 0  # of the records that are read next
        self.last = b""
        """The part of a header that was read last."""

    def of_next_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Read the next member's headers."""
        self._left_bytes, self._pax_bytes = MAX_HEADERS_BYTES, 0
        member = tar.next()
        self._left_bytes = None
        return member

    def read(self, size: int = -1) -> bytes:
        if self._left_bytes is None:
            return self._stream.read(size)
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise HeaderError(f"a header of it claims {size} bytes")
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise HeaderError(f"the headers of a member have more than {MAX_HEADERS_BYTES} bytes")
        self.last = content = self._stream.read(size)
        if self._pax_bytes:
            _check_records(content[: self._pax_bytes])
            self._pax_bytes = 0
        elif size == _BLOCK and content[156:157] in _PAX_TYPES:
            self._pax_bytes = _size_of(content)
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


@contextmanager
def archive_members(
    archive: Path, *, limit_bytes: int, advanced: Callable[[int], None] = lambda _count: None
) -> Iterator[TarMembers]:
    """Yield the members of a tar archive, plain or compressed, to be read to their end in the block.

    `advanced` is called with the number of bytes of the archive that each step reads. UnsafeArchiveError: it
    is damaged, ends too early, or has more than `limit_bytes` when it is unpacked.
    """
    try:
        with archive.open("rb") as packed:
            stream = _Unpacked(packed, limit_bytes, advanced)
            members = TarMembers(stream)
            yield members
            # tarfile takes an unreadable header for the end.
            if not members.have_ended:
                raise UnsafeArchiveError("it is damaged, or ends too early")
            # What is behind the end has to be whole, too: checksums of a compressed archive are there.
            while stream.read(_CHUNK_BYTES):
                pass
    except HeaderError as error:
        raise UnsafeArchiveError(str(error)) from None
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        raise UnsafeArchiveError(f"it is damaged, or no tar archive: {error}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise UnsafeArchiveError(f"its headers are damaged: {type(error).__name__}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UnsafeArchiveError("its headers are damaged: they lead out of it") from None


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a file, to be read forwards."""

    def __init__(self, packed: BinaryIO, limit_bytes: int, advanced: Callable[[int], None]) -> None:
        self._packed, self._advanced, self._packed_bytes = packed, advanced, 0
        self._chunks, self._limit_bytes = _chunks(packed), limit_bytes
        self._chunk, self._begin = b"", 0  # of which the bytes before `_begin` were read
        self._unpacked_bytes = 0

    def read(self, size: int = -1) -> bytes:
        pieces = []
        while size > 0:
            if self._begin == len(self._chunk):
                self._chunk, self._begin = next(self._chunks, b""), 0
                self._unpacked_bytes += len(self._chunk)
                self._report()
                if self._unpacked_bytes > self._limit_bytes:
                    raise UnsafeArchiveError(
                        f"it is larger than {self._limit_bytes >> 20} MiB when it is unpacked"
                    )
                if not self._chunk:
                    break
            piece = self._chunk[self._begin : self._begin + size]
            self._begin += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def _report(self) -> None:
        packed_bytes = self._packed.tell()
        self._advanced(packed_bytes - self._packed_bytes)
        self._packed_bytes = packed_bytes

    def seek(self, offset: int, whence: int = 0) -> int:
        left = offset - self.tell()
        if whence or left < 0:
            raise OSError(errno.EINVAL, "it is read forwards")
        while left and (skipped := len(self.read(min(left, _CHUNK_BYTES)))):
            left -= skipped
        return self.tell()

    def tell(self) -> int:
        return self._unpacked_bytes - len(self._chunk) + self._begin

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _chunks(packed: BinaryIO) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file, a megabyte at a time."""
    magic = packed.read(6)
    packed.seek(0)
    source: BinaryIO | gzip.GzipFile | bz2.BZ2File | zstandard.ZstdDecompressionReader = packed
    if magic.startswith(b"\xfd7zXZ\x00"):
        yield from _xz(packed)
        return
    if magic.startswith(b"\x1f\x8b"):
        source = gzip.GzipFile(fileobj=packed)
    elif magic.startswith(b"BZh"):
        source = bz2.BZ2File(packed)
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        source = decompressor.stream_reader(packed, read_across_frames=True)
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
            # It is empty while a block begins, which is not the end.
            if chunk := unpacker.decompress(rest, _CHUNK_BYTES):
                yield chunk
            rest = b""
        # Another stream may follow, behind zeros.
        rest = unpacker.unused_data.lstrip(b"\0")
        while not rest:
            more = stream.read(_CHUNK_BYTES)
            if not more:
                return
            rest = more.lstrip(b"\0")


def _size_of(block: bytes) -> int:
    """Return the size of what follows a header; 0 if the block is none."""
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
    except tarfile.TarError:
        return 0


def _check_records(content: bytes) -> None:
    """Raise HeaderError unless each record of a pax header is as long as it says, with a key and a value."""
    begin = 0
    while begin < len(content) and content[begin]:
        match = _RECORD.match(content, begin)
        end = begin + int(match[1]) if match else begin
        if match is None or content[end - 1 : end] != b"\n" or content.find(b"=", match.end(), end) < 0:
            raise HeaderError("a pax header of it is malformed")
        begin = end
    if _MANY_DIGITS.search(content):
        raise HeaderError("a pax header of it has a number of 256 digits")
