"""Reads the members of tar archives that come from strangers.

`tarfile` reads each header as a whole. The headers of a member have limits here, and the records of a pax
header are checked first: without a fix, its patterns take quadratic time and memory for some.

Source: POSIX, "pax Header Block"; CVE-2024-6232.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import IO, BinaryIO

MAX_HEADER_BYTES = 1 << 20
# Of one member, which may have several headers.
MAX_HEADERS_BYTES = 2 << 20
_BLOCK = 512
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_RECORD = re.compile(rb"([0-9]{1,7}) [^=\n]")
_MANY_DIGITS = re.compile(rb"[0-9]{256}")


class HeaderError(tarfile.TarError):
    """The headers of an archive are malformed, or larger than any archive needs."""


class TarMembers:
    """The members of an archive, each forgotten when the next is read.

    `stream` need not seek backwards. tarfile.TarError, EOFError, RecursionError, ValueError: it is malformed.
    """

    def __init__(self, stream: BinaryIO | io.BufferedIOBase) -> None:
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

    def open(self, member: tarfile.TarInfo) -> IO[bytes]:
        """Return the content of a regular file."""
        content = self._tar.extractfile(member)
        if content is None:
            raise AssertionError("a regular file has a content")
        return content


class _Headers(io.RawIOBase):
    """A file of which tarfile can read only as much as a member's headers may need."""

    def __init__(self, stream: BinaryIO | io.BufferedIOBase) -> None:
        self._stream = stream
        # The first header is read when the archive is opened.
        self._left_bytes: int | None = MAX_HEADERS_BYTES
        self._pax_bytes = 0  # of the records that are read next

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
        content = self._stream.read(size)
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
