"""How a file system packs its data: compressor, options and block size; compresses blocks in the same way.

Source: squashfs-tools-ng, doc/format.adoc, "Compression Options"; Linux, fs/squashfs/xz_wrapper.c.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import zstandard
from zlib_ng import zlib_ng

from envbuild.squashfs.format import METADATA_BYTES, Compressor, SquashfsError
from envbuild.squashfs.reader import Squashfs

# Those of mksquashfs, which file systems do not store.
_DEFAULT_ZSTD = struct.pack("<I", 15)
_DEFAULT_GZIP = struct.pack("<IHH", 9, 15, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the data of a file system is packed."""

    compressor: Compressor
    block_bytes: int = 1 << 17
    """Length of a block before compression."""
    options: bytes = b""
    """Options of the compressor, as a file system stores them; empty for the defaults of mksquashfs."""


ZSTD = Packing(compressor=Compressor.ZSTD, options=struct.pack("<I", 3))
"""Level 3, in blocks of 128 KiB."""
GZIP = Packing(compressor=Compressor.GZIP)
"""For kernels without zstd: level 9, in blocks of 128 KiB."""


def packing_of(squashfs: Squashfs) -> Packing:
    """Return how a file system is packed; SquashfsError if the options of its compressor are damaged."""
    superblock, options = squashfs.superblock, squashfs.compressor_options()
    packing = Packing(compressor=superblock.compressor, block_bytes=superblock.block_bytes, options=options)
    try:
        block_compressor(packing)
    except SquashfsError as error:
        raise SquashfsError(str(error), squashfs) from error
    return packing


def block_compressor(packing: Packing) -> Callable[[bytes], bytes]:
    """Return a function that compresses a block of data; threads may share it.

    A result may be as long as the block, or longer: such a block is stored as it is. LZ4 has no compressor
    here, and all its blocks are stored so. SquashfsError: the options are damaged.
    """
    try:
        match packing.compressor:
            case Compressor.ZSTD:
                (level,) = struct.unpack_from("<I", packing.options or _DEFAULT_ZSTD)
                _check_option("level", level, 1, zstandard.MAX_COMPRESSION_LEVEL)
                return partial(_zstd, level)
            case Compressor.GZIP:
                # Its strategies are tried for smaller blocks alone: no reader needs blocks to have them.
                level, window_bits, _ = struct.unpack_from("<IHH", packing.options or _DEFAULT_GZIP)
                _check_option("level", level, 1, 9)
                _check_option("window", window_bits, 8, 15)
                return partial(_gzip, level, window_bits)
            case Compressor.XZ:
                return partial(_xz, _xz_dictionary_bytes(packing))
            case _:
                return bytes
    except struct.error:
        raise SquashfsError("the options of its compressor are cut short") from None


def _check_option(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise SquashfsError(f"the options of its compressor claim a {name} of {value}")


def _xz_dictionary_bytes(packing: Packing) -> int:
    """Return the size of the dictionary for a block: at most that of the kernel's decoder."""
    most = packing.block_bytes
    if packing.options:
        # It may also name filters; they are for machine code, and no reader needs blocks to have them.
        most = min(most, struct.unpack_from("<II", packing.options)[0])
    # A block states 2**n or 3 * 2**n, and a decoder refuses one that states more than it has.
    power = 1 << max(most, METADATA_BYTES).bit_length() - 1
    return power + power // 2 if power + power // 2 <= most else power


# A new compressor for each block: one that is used again may give other bytes (zlib-ng's issue 2100).


def _zstd(level: int, block: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(block)


def _gzip(level: int, window_bits: int, block: bytes) -> bytes:
    packer = zlib_ng.compressobj(level, zlib_ng.DEFLATED, window_bits)
    return packer.compress(block) + packer.flush()


def _xz(dictionary_bytes: int, block: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": lzma.PRESET_DEFAULT, "dict_size": dictionary_bytes}]
    return lzma.compress(block, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=filters)
