"""Squashfs 4.0 on disk: the superblock, blocks of metadata, compressors.

All numbers are little-endian. Offsets are in bytes from the start of the superblock.

Sources: squashfs-tools-ng, doc/format.adoc; Linux, fs/squashfs/squashfs_fs.h.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from dataclasses import astuple, dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

import zstandard
from zlib_ng import zlib_ng

if TYPE_CHECKING:
    from envbuild.squashfs.reader import Squashfs

MAGIC = 0x73717368
SUPERBLOCK_BYTES = 96
METADATA_BYTES = 8192
UNCOMPRESSED_METADATA = 0x8000
UNCOMPRESSED_BLOCK = 1 << 24
ABSENT = 0xFFFF_FFFF_FFFF_FFFF
"""The offset of an absent table."""
NONE = 0xFFFF_FFFF
"""In an inode: no fragment, or no extended attributes."""

# File systems are padded to it. Data that is spliced keeps its offset modulo this, so that file systems with
# reflinks can share it.
ALIGNMENT = 4096

_SUPERBLOCK = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")
_BLOCK_BYTES = [1 << power for power in range(12, 21)]
# For a dictionary of 1 MiB, the largest that a block can use.
_XZ_MEMORY_BYTES = 16 << 20
# The kernel's decoder has a dictionary of at least this size, and supports no checksum but CRC32.
_XZ_FILTERS = [{"id": lzma.FILTER_LZMA2, "dict_size": METADATA_BYTES}]


class Compressor(IntEnum):
    """The compressors of the format."""

    GZIP = 1
    LZMA = 2
    LZO = 3
    XZ = 4
    LZ4 = 5
    ZSTD = 6


_SUPPORTED = (Compressor.GZIP, Compressor.XZ, Compressor.LZ4, Compressor.ZSTD)


class Flag(IntFlag):
    """The flags of a superblock that this package reads or writes."""

    NO_FRAGMENTS = 0x10
    DEDUPLICATED = 0x40
    EXPORTABLE = 0x80
    NO_ATTRIBUTES = 0x200
    COMPRESSOR_OPTIONS = 0x400


class Type(IntEnum):
    """Basic types of inodes; the number of the extended form is `EXTENDED` higher."""

    DIRECTORY = 1
    FILE = 2
    LINK = 3
    BLOCK_DEVICE = 4
    CHARACTER_DEVICE = 5
    FIFO = 6
    SOCKET = 7


EXTENDED = 7


class SquashfsError(ValueError):
    """A file system is damaged, cannot be read, or has a form that is not supported."""

    def __init__(self, problem: str, squashfs: Squashfs | None = None) -> None:
        super().__init__(problem)
        self.squashfs = squashfs
        """The file system; None if it is the one that is being opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    """The first 96 bytes of a squashfs."""

    inodes: int
    mtime_s: int
    """When it was made, in seconds since the epoch."""
    block_bytes: int
    """Length of a block of data before compression: a power of 2 from 4 KiB to 1 MiB."""
    fragments: int
    compressor: Compressor
    flags: int
    ids: int
    """Number of user and group ids."""
    root: int
    """Reference to the root's inode."""
    bytes_used: int
    """Length of the file system."""
    id_table: int
    attribute_table: int
    inode_table: int
    directory_table: int
    fragment_table: int
    export_table: int
    """Offsets; `ABSENT` for an absent table."""

    @classmethod
    def parse(cls, data: bytes) -> Superblock:
        """Read a superblock.

        Raises SquashfsError unless it is a consistent superblock of squashfs 4.0 with a supported compressor.
        """
        if len(data) < SUPERBLOCK_BYTES:
            raise SquashfsError("it is cut short")
        magic, inodes, mtime, block_bytes, fragments, compressor, block_log, flags, ids, *rest = (
            _SUPERBLOCK.unpack_from(data)
        )
        major, minor, *offsets = rest
        if magic != MAGIC or (major, minor) != (4, 0):
            raise SquashfsError("it is not a squashfs 4.0")
        if compressor not in _SUPPORTED:
            name = Compressor(compressor).name.lower() if compressor in iter(Compressor) else compressor
            raise SquashfsError(f"its compressor, {name}, is not supported: gzip, lz4, xz and zstd are")
        if block_bytes not in _BLOCK_BYTES or 1 << block_log != block_bytes:
            raise SquashfsError(f"it claims blocks of {block_bytes} bytes")
        values = (inodes, mtime, block_bytes, fragments, Compressor(compressor), flags, ids, *offsets)
        return cls(**dict(zip(cls.__slots__, values, strict=True)))

    def pack(self) -> bytes:
        """Return the `SUPERBLOCK_BYTES` bytes on disk."""
        inodes, mtime, block_bytes, fragments, compressor, flags, ids, *offsets = astuple(self)
        log = block_bytes.bit_length() - 1
        head = (MAGIC, inodes, mtime, block_bytes, fragments, compressor, log, flags, ids)
        return _SUPERBLOCK.pack(*head, 4, 0, *offsets)


class Codec:
    """Compresses and decompresses the blocks of one file system; not thread-safe."""

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._zstd_compressor = zstandard.ZstdCompressor(level=3)
        self._zstd_decompressor = zstandard.ZstdDecompressor()

    def compress(self, data: bytes) -> bytes:
        """Return a block of metadata, compressed so that every reader can decompress it."""
        match self._compressor:
            case Compressor.ZSTD:
                return self._zstd_compressor.compress(data)
            case Compressor.XZ:
                return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_XZ_FILTERS)
            case Compressor.LZ4:
                return data  # not shorter: it is stored as it is
            case _:
                return zlib_ng.compress(data, 9)

    def decompress(self, data: bytes, limit_bytes: int) -> bytes:
        """Return the content of a block; SquashfsError if it is damaged, or longer than `most` bytes."""
        try:
            if self._compressor is Compressor.ZSTD:
                # The decoder allocates as much as the frame claims.
                if zstandard.frame_content_size(data) > limit_bytes:
                    raise SquashfsError("a block holds more than it may")
                return self._zstd_decompressor.decompress(data, max_output_size=limit_bytes)
            if self._compressor is Compressor.LZ4:
                return _decompress_lz4(data, limit_bytes)
            if self._compressor is Compressor.XZ:
                xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
                content, whole = xz.decompress(data, limit_bytes), xz.eof
            else:
                gzip = zlib.decompressobj()
                content, whole = gzip.decompress(data, limit_bytes), gzip.eof
        except (zstandard.ZstdError, lzma.LZMAError, zlib.error) as error:
            raise SquashfsError(f"a block is damaged: {error}") from error
        if not whole:
            raise SquashfsError("a block is damaged, or holds more than it may")
        return content


def _decompress_lz4(data: bytes, limit_bytes: int) -> bytes:
    """Return the content of a block of LZ4; SquashfsError if it is damaged, or holds more than `most` bytes.

    Source: lz4, doc/lz4_Block_format.md.
    """
    content, at = bytearray(), 0
    try:
        while True:
            token = data[at]
            length, at = _lz4_length(data, at + 1, token >> 4)
            content += data[at : at + length]
            at += length
            if at >= len(data):
                break
            distance = data[at] | data[at + 1] << 8
            length, at = _lz4_length(data, at + 2, token & 15)
            begin = len(content) - distance
            if begin < 0 or not distance or len(content) + length > limit_bytes:
                raise SquashfsError("a block is damaged, or holds more than it may")
            # What is repeated may be shorter than the repetition.
            piece = bytes(content[begin : begin + length + 4])
            content += (piece * (1 + (length + 4) // len(piece)))[: length + 4]
    except IndexError:
        raise SquashfsError("a block is damaged: it is cut short") from None
    if at != len(data) or len(content) > limit_bytes:
        raise SquashfsError("a block is damaged, or holds more than it may")
    return bytes(content)


def _lz4_length(data: bytes, at: int, start: int) -> tuple[int, int]:
    """Return a length whose first 4 bits are `start`, and where the bytes behind it begin."""
    if start == 15:
        while data[at] == 255:
            start, at = start + 255, at + 1
        start, at = start + data[at], at + 1
    return start, at
