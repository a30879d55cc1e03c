"""A file's content within a squashfs, as a stream."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuild.image.squashfs import Entry, Squashfs


class Content(io.RawIOBase):
    """A file of a squashfs as a stream, whose blocks are unpacked as they are read."""

    def __init__(self, image: Squashfs, entry: Entry) -> None:
        self._image, self._entry, self._at = image, entry, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True: any place can be unpacked."""
        return True

    def seek(self, at: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, as `io.IOBase.seek`; before the beginning there is none (ValueError)."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.size}[whence]
        if base + at < 0:
            raise ValueError("a place before the beginning")
        self._at = base + at
        return self._at

    def tell(self) -> int:
        """Return the place, in bytes from the beginning."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's buffer protocol
        """Fill a buffer with what is left of the current block, and return how much that was."""
        if self._at >= self._entry.size:
            return 0
        index, start = divmod(self._at, self._image.block_bytes)
        data = self._image.block(self._entry, index)[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
