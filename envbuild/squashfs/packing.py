"""The options with which mksquashfs packs what is to be spliced onto a file system of another tool.

Source: squashfs-tools-ng, doc/format.adoc, "Compression Options".
"""

from __future__ import annotations

import struct

from envbuild.squashfs.format import Compressor, SquashfsError
from envbuild.squashfs.reader import Squashfs

_GZIP_STRATEGIES = ("default", "filtered", "huffman_only", "run_length_encoded", "fixed")
_LZ4_HIGH_COMPRESSION = 1


def packing_options(squashfs: Squashfs) -> tuple[str, ...]:
    """Return the options of mksquashfs for the compressor, its options and the block size of a file system.

    SquashfsError: its options are damaged.
    """
    superblock = squashfs.superblock
    words = ("-b", str(superblock.block_bytes), "-comp", superblock.compressor.name.lower())
    options = squashfs.compressor_options()
    if not options:
        return words
    try:
        return (*words, *_options(superblock.compressor, options))
    except struct.error:
        raise SquashfsError("the options of its compressor are cut short", squashfs) from None


def _options(compressor: Compressor, options: bytes) -> tuple[str, ...]:
    match compressor:
        case Compressor.GZIP:
            level, window, strategies = struct.unpack_from("<IHH", options)
            names = [name for bit, name in enumerate(_GZIP_STRATEGIES) if strategies >> bit & 1]
            words = ("-Xcompression-level", str(level), "-Xwindow-size", str(window))
            return (*words, "-Xstrategy", ",".join(names)) if names else words
        case Compressor.XZ:
            dictionary, _ = struct.unpack_from("<II", options)
            # Its filters are for machine code alone, and no reader needs blocks to have them.
            return ("-Xdict-size", str(dictionary))
        case Compressor.LZ4:
            _, flags = struct.unpack_from("<II", options)
            return ("-Xhc",) if flags & _LZ4_HIGH_COMPRESSION else ()
        case _:
            (level,) = struct.unpack_from("<I", options)
            return ("-Xcompression-level", str(level))
