"""GPU code made to order: fat binaries and bundles whose code is nothing, in sections of an ELF file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import zstandard

PTX, CUBIN, OTHER = 1, 2, 8
OWN, FAMILY = 1 << 20, 1 << 21
Entry = tuple[int, int, int]


def fat_binary(*entries: Entry, code: bytes = b"code" * 4, header: int = 64) -> bytes:
    """Return a fat binary of NVIDIA's with entries of kind, architecture and flags."""
    body = b""
    for kind, architecture, flags in entries:
        fixed = struct.pack("<HHIQ12xI8xQ16x", kind, 0x101, header, len(code), architecture, flags)
        body += fixed.ljust(header, b"\0") + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def cubins(*architectures: int) -> bytes:
    """Return a fat binary with a binary for each of some architectures."""
    return fat_binary(*((CUBIN, one, 0) for one in architectures))


def bundle(*targets: str, code: bytes = b"code" * 1024) -> bytes:
    """Return an offload bundle of AMD's with code for some targets."""
    names = ["host-x86_64-unknown-linux-gnu-", *(f"hipv4-amdgcn-amd-amdhsa--{one}" for one in targets)]
    at = 4096
    table = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names))
    for number, name in enumerate(names):
        length = len(code) if number else 0
        table += struct.pack("<QQQ", at, length, len(name)) + name.encode()
        at += length
    return table.ljust(4096, b"\0") + code * len(targets)


def compressed(content: bytes, *, version: int = 3, method: str = "zstd") -> bytes:
    """Return a bundle as clang compresses it."""
    packed = zstandard.compress(content) if method == "zstd" else zlib.compress(content)
    form = {1: "<IQ", 2: "<IIQ", 3: "<QQQ"}[version]
    whole = [] if version == 1 else [8 + struct.calcsize(form) + len(packed)]
    lengths = [*whole, len(content), 0]
    head = struct.pack("<4sHH", b"CCOB", version, method == "zstd")
    return head + struct.pack(form, *lengths) + packed


def pages(*bundles: bytes) -> bytes:
    """Lay bundles one behind the other as clang does."""
    return b"".join(one.ljust(-(-len(one) // 4096) * 4096, b"\0") for one in bundles)


def with_sections(elf: bytes, sections: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> bytes:
    """Return an ELF file that has no sections with some."""
    pairs = list(sections.items()) if isinstance(sections, Mapping) else list(sections)
    names = b"\0"
    table = bytes(64)
    body = elf
    for name, data in [*pairs, (".shstrtab", b"")]:
        at = len(names)
        names += name.encode() + b"\0"
        content = data or names
        body += bytes(-len(body) % 8)
        table += struct.pack("<IIQQQQIIQQ", at, 1, 2, 0, len(body), len(content), 0, 0, 8, 0)
        body += content
    body += bytes(-len(body) % 8)
    head = bytearray(body[:64])
    struct.pack_into("<Q", head, 40, len(body))
    struct.pack_into("<HHH", head, 58, 64, len(pairs) + 2, len(pairs) + 1)
    return bytes(head) + body[64:] + table
