"""Reads ELF files: their headers, the tables that the loader reads, and their dynamic symbols.

Files are hostile until checked: the number of bytes read is bounded, and anything malformed is a ValueError.
The loader's tables are located by their addresses, since section headers may be stripped.

Source: System V ABI, chapters 4 and 5; Linux Standard Base Core, "Symbol Versioning".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC_ENTRY = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MACHINES = {62: "amd64", 183: "arm64"}
_ET_EXEC, _ET_DYN = 2, 3
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SHT_DYNSYM = 11
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 6, 10, 14, 15, 29
_DT_FLAGS_1 = 0x6FFFFFFB
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = range(0x6FFFFFFC, 0x70000000)
_DF_1_NODEFLIB = 0x800
_VER_FLG_WEAK = 2
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_HIDDEN = (1, 2)  # internal and hidden: not for others
_MAX_READ_BYTES = 8 << 20
_MAX_NAME_BYTES = 64 << 10
_MAX_SECTION_NAME_BYTES = 64
_MAX_SYMBOLS_BYTES = 128 << 20
_MAX_STRINGS_BYTES = 256 << 20
MAX_TABLES_BYTES = 1 << 30  # of all files of an image


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfObject:
    """The data of one ELF file that the loader needs."""

    machine: str
    """``amd64``, ``arm64``, or ``machine-N`` with ELF's own number."""
    soname: str = ""
    """The name that others need it by; empty for none."""
    needed: tuple[str, ...] = ()
    """Libraries that it needs, in its order."""
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    """Directories to search before and after LD_LIBRARY_PATH; as written, with ``$ORIGIN``."""
    versions_needed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Library → versions that it must define (``GLIBC_2.34``); without weak ones, which may be absent."""
    versions_defined: tuple[str, ...] = ()
    """Versions that it defines, its own name first; empty for a library without versions."""
    interpreter: str = ""
    """The loader of a program; empty for a library."""
    default_directories: bool = True
    """Whether the loader searches its own directories for the libraries that it needs."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """Names of a file's dynamic symbols, without versions."""

    undefined: frozenset[str] = frozenset()
    """Those that another object must define; without weak ones, which may stay undefined."""
    defined: frozenset[str] = frozenset()
    """Those that it offers to others."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a file, by its header."""

    name: bytes
    """Cut to 64 bytes."""
    kind: int
    """``sh_type``."""
    offset: int
    size_bytes: int


class TableBudget:
    """Bytes of tables that may be read of several files: names may share one file, and files their blocks."""

    def __init__(self, left_bytes: int = MAX_TABLES_BYTES) -> None:
        self._left_bytes = left_bytes

    def charge(self, length: int) -> None:
        """Count bytes; ValueError once there were too many."""
        self._left_bytes -= length
        if self._left_bytes < 0:
            raise ValueError("the tables of these files are too large")


def read_elf(file: BinaryIO, budget: TableBudget | None = None) -> ElfObject | None:
    """Return the data that the loader needs; None unless it is a 64-bit little-endian program or library.

    ValueError if it is malformed, cut short, or has tables that are much larger than usual.
    """
    elf = open_elf(file, budget)
    return _Dynamic(elf).object() if elf and elf.kind in (_ET_EXEC, _ET_DYN) else None


def read_symbols(
    file: BinaryIO, prefixes: tuple[str, ...] = (), budget: TableBudget | None = None
) -> Symbols:
    """Return the dynamic symbols of an ELF file whose names begin with one of `prefixes`; all if empty."""
    elf = open_elf(file, budget)
    if elf is None:
        raise ValueError("it is no 64-bit little-endian ELF file")
    symbols, strings = _Dynamic(elf).symbol_tables()
    beginnings = tuple(prefix.encode() for prefix in prefixes)
    firsts = {prefix[:1] for prefix in beginnings}  # most names differ in the first character already
    # Versions of a symbol share its name, and others the end of one: `MPI_Send` that of `PMPI_Send`.
    left_bytes = 8 * len(strings) + _MAX_NAME_BYTES
    undefined, defined = set(), set()
    for at, info, other, section, _, _ in _SYMBOL.iter_unpack(symbols):
        binding = info >> 4
        if not at or binding not in (_GLOBAL, _WEAK, _UNIQUE):
            continue
        if beginnings and (strings[at : at + 1] not in firsts or not strings.startswith(beginnings, at)):
            continue
        end = strings.find(b"\0", at, at + _MAX_NAME_BYTES)
        if end < 0:
            raise ValueError("a symbol's name has no end")
        left_bytes -= end - at
        if left_bytes < 0:
            raise ValueError("the names of its symbols overlap")
        name = strings[at:end].decode(errors="replace")
        if section and other & 3 not in _HIDDEN:
            defined.add(name)
        elif not section and binding != _WEAK:
            undefined.add(name)
    return Symbols(undefined=frozenset(undefined), defined=frozenset(defined))


def open_elf(file: BinaryIO, budget: TableBudget | None = None) -> ElfFile | None:
    """Return the headers of a file; None unless it is a 64-bit little-endian ELF file."""
    file.seek(0)
    header = file.read(_HEADER.size)
    is_elf = len(header) == _HEADER.size and header[:6] == b"\x7fELF\x02\x01"
    return ElfFile(file, header, budget or TableBudget()) if is_elf else None


def read_exactly(file: BinaryIO, at: int, length: int) -> bytes:
    """Return `length` bytes of a file; ValueError if it ends before."""
    if at > 1 << 62:
        raise ValueError("a table lies outside of it")
    file.seek(at)
    data = file.read(length)
    if len(data) != length:
        raise ValueError("cut short")
    return data


class ElfFile:
    """The headers of a 64-bit little-endian ELF file.

    Reads of its small tables are limited, so that circular tables come to an end.
    """

    def __init__(self, file: BinaryIO, header: bytes, budget: TableBudget) -> None:
        self.file = file
        self.budget = budget
        self._left_bytes = _MAX_READ_BYTES
        _, self.kind, self.machine, _, _, self._segments_at, self._sections_at, *rest = _HEADER.unpack(header)
        _, _, self._segment_bytes, self._segments, self._section_bytes, self._sections, self._names = rest

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of a small table; a ValueError once the file has asked for too many."""
        self._charge(length)
        return read_exactly(self.file, at, length)

    def text(self, at: int) -> str:
        """Return the text at a place, up to its null byte."""
        data = b""
        self.read(at, 0)
        while b"\0" not in data:
            self._charge(64)
            piece = self.file.read(64)
            if not piece or len(data) > _MAX_NAME_BYTES:
                raise ValueError("a name has no end")
            data += piece
        return data.partition(b"\0")[0].decode(errors="replace")

    def segments(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield type, place in the file, address and length in the file of each segment."""
        if self._segments and self._segment_bytes != _SEGMENT.size:
            raise ValueError("odd program headers")
        table = self.read(self._segments_at, self._segments * _SEGMENT.size)
        for kind, _, offset, address, _, size_bytes, _, _ in _SEGMENT.iter_unpack(table):
            yield kind, offset, address, size_bytes

    def sections(self) -> Iterator[Section]:
        """Yield the sections."""
        if not self._sections_at or not self._sections:
            return
        if self._section_bytes != _SECTION.size or self._names >= self._sections:
            raise ValueError("odd section headers")
        table = self.read(self._sections_at, self._sections * _SECTION.size)
        headers = list(_SECTION.iter_unpack(table))
        names = self.read(*headers[self._names][4:6])
        for at, kind, _, _, offset, size_bytes, *_ in headers:
            name = names[at : at + _MAX_SECTION_NAME_BYTES].partition(b"\0")[0]
            yield Section(name, kind, offset, size_bytes)

    def _charge(self, length: int) -> None:
        # Tiny reads take time, too.
        self.budget.charge(max(length, 16))
        self._left_bytes -= max(length, 16)
        if self._left_bytes < 0:
            raise ValueError("its tables are too large")


class _Dynamic:
    """The dynamic table of a file, and the tables that it leads to."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._loads: list[tuple[int, int, int]] = []  # address, offset, bytes in the file
        self._interpreter = ""
        self._values: dict[int, list[int]] = {}
        table = b""
        for kind, offset, address, size_bytes in elf.segments():
            if kind == _PT_LOAD:
                self._loads.append((address, offset, size_bytes))
            elif kind == _PT_INTERP:
                self._interpreter = elf.text(offset)
            elif kind == _PT_DYNAMIC and not table:
                table = elf.read(offset, size_bytes - size_bytes % _DYNAMIC_ENTRY.size)
        for tag, value in _DYNAMIC_ENTRY.iter_unpack(table):
            if not tag:
                break
            self._values.setdefault(tag, []).append(value)

    def object(self) -> ElfObject:
        machine = self._elf.machine
        return ElfObject(
            machine=_MACHINES.get(machine, f"machine-{machine}"),
            soname=next(self._texts(_DT_SONAME), ""),
            needed=tuple(self._texts(_DT_NEEDED)),
            rpath=self._paths(_DT_RPATH),
            runpath=self._paths(_DT_RUNPATH),
            versions_needed=dict(self._versions_needed()),
            versions_defined=tuple(self._versions_defined()),
            interpreter=self._interpreter,
            default_directories=not self._number(_DT_FLAGS_1) & _DF_1_NODEFLIB,
        )

    def symbol_tables(self) -> tuple[bytes, bytes]:
        """Return the dynamic symbols, 24 bytes each, and their strings."""
        at, strings = self._place(_DT_SYMTAB), self._place(_DT_STRTAB)
        if not at or not strings:
            return b"", b""
        size, strings_size = self._symbols_bytes(at, strings), self._number(_DT_STRSZ)
        if size > _MAX_SYMBOLS_BYTES or strings_size > _MAX_STRINGS_BYTES:
            raise ValueError("its tables are too large")
        self._elf.budget.charge(size + strings_size)
        symbols = read_exactly(self._elf.file, at, size - size % _SYMBOL.size)
        return symbols, read_exactly(self._elf.file, strings, strings_size)

    def _symbols_bytes(self, at: int, strings: int) -> int:
        for section in self._elf.sections():
            if section.kind == _SHT_DYNSYM and section.offset == at:
                return section.size_bytes
        # Without section headers nothing has the count; linkers put the strings behind the symbols.
        if strings <= at:
            raise ValueError("the length of its symbol table is unknown")
        return strings - at

    def _versions_needed(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        at = self._place(_DT_VERNEED)
        for _ in range(self._number(_DT_VERNEEDNUM) if at else 0):
            _, count, library, first, following = struct.unpack("<HHIII", self._elf.read(at, 16))
            entry, versions = at + first, []
            for _ in range(count):
                _, flags, _, version, further = struct.unpack("<IHHII", self._elf.read(entry, 16))
                if not flags & _VER_FLG_WEAK:
                    versions.append(self._text(version))
                entry += further
            yield self._text(library), tuple(versions)
            if not following:
                return
            at += following

    def _versions_defined(self) -> Iterator[str]:
        at = self._place(_DT_VERDEF)
        for _ in range(self._number(_DT_VERDEFNUM) if at else 0):
            _, _, _, count, _, first, following = struct.unpack("<HHHHIII", self._elf.read(at, 20))
            if count:
                name, _ = struct.unpack("<II", self._elf.read(at + first, 8))
                yield self._text(name)
            if not following:
                return
            at += following

    def _number(self, tag: int) -> int:
        return self._values.get(tag, [0])[0]

    def _texts(self, tag: int) -> Iterator[str]:
        return (self._text(start) for start in self._values.get(tag, ()))

    def _paths(self, tag: int) -> tuple[str, ...]:
        return tuple(path for text in [*self._texts(tag)][:1] for path in text.split(":"))

    def _text(self, start: int) -> str:
        return self._elf.text(self._place(_DT_STRTAB) + start)

    def _place(self, tag: int) -> int:
        """Return the offset in the file of a tag's address; 0 without the tag."""
        if tag not in self._values:
            return 0
        address = self._number(tag)
        for start, offset, size_bytes in self._loads:
            if start <= address < start + size_bytes:
                return offset + address - start
        raise ValueError(f"tag {tag:#x} of its dynamic table leads nowhere")
