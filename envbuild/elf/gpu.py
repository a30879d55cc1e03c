"""GPU code in ELF files: the GPUs that a library was compiled for, by the headers of its fat binaries.

Of a library of 500 MB some hundred kilobytes are read. No code is unpacked, except for the first bytes of an
AMD bundle that is compressed with its table of contents. Files are hostile until checked; anything malformed
is a ValueError.

Source: NVIDIA's layout is not published. Ours follows ``fatbinary_section.h`` and other readers, and was
compared with the command lines that ptxas leaves in the code of PyTorch 2.13's and NCCL 2.30's wheels. AMD's
is ``llvm/Object/OffloadBundle.h`` and clang's page on its offload bundler.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

from envbuild.elf.read import TableBudget, open_elf, read_exactly

_NVIDIA = (b".nv_fatbin", b"__nv_relfatbin")
_AMD = b".hip_fatbin"
_NOBITS = 8

# magic, version, length of this header, length of the entries behind it
_FAT = struct.Struct("<IHHQ")
_FAT_MAGIC = 0xBA55ED50
# kind, version, length of this header, length of the code, …, architecture, …, flags, …
_ENTRY = struct.Struct("<HHIQ12xI8xQ16x")
_KINDS = {1: "compute_", 2: "sm_"}
# `sm_90a` is for that very GPU, `sm_100f` for those of its family alone.
_OF_ITS_OWN, _OF_ITS_FAMILY = 1 << 20, 1 << 21
# Of a whole file; libcublasLt.so.13 has 2,800 fat binaries with 5,400 entries.
_MAX_STEPS = 200_000
_MAX_READ_BYTES = 512 << 20

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"
# Version → lengths of the bundle as stored (not in version 1) and unpacked, and a hash.
_COMPRESSED_HEADS = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_ZLIB, _ZSTD = 0, 1
# Between the starts of two bundles, by clang.
_BUNDLE_ALIGNMENT = 4096
_MAX_CONTENTS_BYTES = 64 << 10
# A whole block of zstd and the headers before it (RFC 8878).
_PACKED_BYTES = (128 << 10) + 64
_TARGET = re.compile(r"hip(?:v4)?-amdgcn-amd-amdhsa-[a-z]*-(gfx[0-9a-z-]+)(?::.*)?")


@dataclass(frozen=True, slots=True)
class GpuCode:
    """GPU code of one ELF file."""

    binaries: int
    """Its fat binaries, one per compiled source file (count)."""
    held: Mapping[str, int]
    """Architecture → fat binaries with it: ``sm_90`` is a binary, ``compute_90`` PTX, ``gfx90a`` AMD's."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """All of them, by number, PTX last."""
        return ordered(self.held)


def ordered(names: Mapping[str, int]) -> tuple[str, ...]:
    """Return names of architectures by number, PTX last."""

    def rank(name: str) -> tuple[bool, int, str]:
        number = re.fullmatch(r"(?:sm|compute)_([0-9]+)[af]?", name)
        return (name.startswith("compute"), int(number[1]) if number else 0, name)

    return tuple(sorted(names, key=rank))


def read_gpu_code(file: BinaryIO, budget: TableBudget | None = None) -> GpuCode | None:
    """Return the GPUs for which a 64-bit little-endian ELF file holds code; None if it has none.

    ValueError if it is cut short, or its fat binaries have an unknown form.
    """
    elf = open_elf(file, budget)
    if elf is None:
        return None
    binaries, held = 0, Counter[str]()
    code = _Code(file)
    for section in elf.sections():
        if section.kind == _NOBITS or section.name not in (*_NVIDIA, _AMD):
            continue
        read = _amd if section.name == _AMD else _nvidia
        for architectures in read(code, section.offset, section.size_bytes):
            binaries += 1
            held.update(architectures)
    return GpuCode(binaries, dict(sorted(held.items()))) if binaries else None


class _Code:
    """The fat binaries of a file; reads are bounded, whatever their headers say."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left, self._left_bytes = file, _MAX_STEPS, _MAX_READ_BYTES

    def piece(self, at: int, length: int) -> bytes:
        self._left -= 1
        self._left_bytes -= length
        if self._left < 0 or self._left_bytes < 0:
            raise ValueError("it has too many fat binaries")
        return read_exactly(self._file, at, length)


def _nvidia(file: _Code, start: int, length: int) -> Iterator[set[str]]:
    """Yield the architectures of each fat binary of a section."""
    at, end = start, start + length
    while at + _FAT.size <= end:
        head = file.piece(at, _FAT.size)
        if not any(head[:8]):
            at += 8  # padding
            continue
        magic, version, own, size = _FAT.unpack(head)
        if magic != _FAT_MAGIC or version != 1 or own < _FAT.size or at + own + size > end:
            raise ValueError("a fat binary of a form that is not known")
        architectures: set[str] = set()
        entry, at = at + own, at + own + size
        while entry < at:
            kind, _, header, code, number, flags = _ENTRY.unpack(file.piece(entry, _ENTRY.size))
            if header < _ENTRY.size or entry + header + code > at:
                raise ValueError("an entry of a fat binary of a form that is not known")
            if kind in _KINDS:
                suffix = "a" if flags & _OF_ITS_OWN else "f" if flags & _OF_ITS_FAMILY else ""
                architectures.add(f"{_KINDS[kind]}{number}{suffix}")
            entry += header + code
        yield architectures


def _amd(file: _Code, start: int, length: int) -> Iterator[set[str]]:
    """Yield the architectures of each bundle of a section."""
    at, end = start, start + length
    while at < end:
        head = file.piece(at, min(len(_BUNDLE) + 8, end - at))
        if not any(head):
            at += _BUNDLE_ALIGNMENT
            continue
        if head.startswith(_BUNDLE):
            architectures, size = _contents(_Bundle(file, at, end - at))
        elif head.startswith(_COMPRESSED):
            architectures, size = _compressed(file, at, end)
        else:
            raise ValueError("a bundle of a form that is not known")
        yield architectures
        if size <= 0 or at + size > end:
            raise ValueError("a bundle is cut short")
        at += -(-size // _BUNDLE_ALIGNMENT) * _BUNDLE_ALIGNMENT


class _Bundle:
    """The beginning of a bundle; no more is read than a table of contents may have."""

    def __init__(self, file: _Code, at: int, length: int) -> None:
        self._file, self._at, self._left = file, at, min(length, _MAX_CONTENTS_BYTES)

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise ValueError("the contents of a bundle are too long")
        piece = self._file.piece(self._at, count)
        self._at += count
        self._left -= count
        return piece


def _contents(source: _Bundle | BinaryIO) -> tuple[set[str], int]:
    def take(form: str) -> tuple[int, ...]:
        data = source.read(struct.calcsize(form))
        if len(data) != struct.calcsize(form):
            raise ValueError("the contents of a bundle are cut short")
        return struct.unpack(form, data)

    if source.read(len(_BUNDLE)) != _BUNDLE:
        raise ValueError("a bundle of a form that is not known")
    (count,) = take("<Q")
    architectures, size = set(), 0
    for _ in range(count):
        offset, length, name_length = take("<QQQ")
        if name_length > _MAX_CONTENTS_BYTES:
            raise ValueError("the contents of a bundle are too long")
        target = _TARGET.fullmatch(source.read(name_length).decode(errors="replace"))
        size = max(size, offset + length)
        if target and length:
            architectures.add(target[1])
    return architectures, size


def _compressed(file: _Code, at: int, end: int) -> tuple[set[str], int]:
    version, method = struct.unpack("<HH", file.piece(at + 4, 4))
    head = _COMPRESSED_HEADS.get(version)
    if head is None or method not in (_ZLIB, _ZSTD):
        raise ValueError("a compressed bundle of a form that is not known")
    lengths = head.unpack(file.piece(at + 8, head.size))
    # The first version does not say where it ends: it counts as the last of its section.
    size = end - at if version == 1 else lengths[0]
    start = at + 8 + head.size
    packed = file.piece(start, max(min(size - 8 - head.size, end - start, _PACKED_BYTES), 0))
    try:
        if method == _ZSTD:
            unpacked = zstandard.ZstdDecompressor().stream_reader(packed).read(_MAX_CONTENTS_BYTES)
        else:
            unpacked = zlib.decompressobj().decompress(packed, _MAX_CONTENTS_BYTES)
    except (zstandard.ZstdError, zlib.error) as error:
        raise ValueError(f"a compressed bundle is damaged: {error}") from error
    return _contents(io.BytesIO(unpacked))[0], size
