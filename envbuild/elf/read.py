"""Read ELF files: what the loader wants to know of one, and the symbols that it asks for and offers.

pyelftools reads headers and dynamic entries; version and symbol tables are
read in bulk. Files are hostile until checked: what is read of one is bounded,
and whatever is wrong with it is a ValueError.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

_MACHINES = {"EM_X86_64": "amd64", "EM_AARCH64": "arm64"}
_LOADABLE = ("ET_EXEC", "ET_DYN")
# Entries of the dynamic table that pyelftools may know under no name are numbers there.
_STRING_TAGS = {"DT_SONAME", "DT_NEEDED", "DT_RPATH", "DT_RUNPATH"}
_DF_1_NODEFLIB = 0x800
_VER_FLG_WEAK = 2
_MAX_READ_BYTES = 8 << 20
_MAX_NAME_BYTES = 64 << 10
_MAX_SYMBOLS_BYTES = 128 << 20
_MAX_STRINGS_BYTES = 256 << 20
_SYMBOL = struct.Struct("<IBBHQQ")
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_HIDDEN = (1, 2)  # internal and hidden: not for others


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfObject:
    """What the loader wants to know of one ELF file."""

    machine: str
    """``amd64``, ``arm64``, or ELF's own name in small letters (``ppc64``)."""
    soname: str = ""
    """What others ask for it by; empty for none."""
    needed: tuple[str, ...] = ()
    """Libraries that it asks for, in its order."""
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    """Where it asks to look, before and after LD_LIBRARY_PATH; as written, with ``$ORIGIN``."""
    versions_needed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Library → versions that it must define (``GLIBC_2.34``); without those that are only wished for (weak).
    """
    versions_defined: tuple[str, ...] = ()
    """Versions that it defines, its own name first; empty for a library without versions."""
    interpreter: str = ""
    """The loader that it names: it can be started; empty for a library."""
    default_directories: bool = True
    """Whether what it needs is also looked for in the loader's own directories."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """Names of a file's dynamic symbols, without versions."""

    undefined: frozenset[str]
    """What something else must define; without weak ones, which may stay undefined."""
    defined: frozenset[str]
    """What it offers to others."""


def read_elf(file: BinaryIO) -> ElfObject | None:
    """Read what the loader wants to know; None for what is no 64-bit little-endian program or library.

    Raises
    ------
    ValueError
        It is malformed, cut short, or much larger than such tables are.
    OSError
        It cannot be read.
    """
    if not _is_elf(file):
        return None
    with _told():
        elf = _opened(file)
        if elf["e_type"] not in _LOADABLE:
            return None
        return _Reader(elf).object()


def read_symbols(file: BinaryIO, prefixes: tuple[str, ...] = ()) -> Symbols:
    """Read the names of the dynamic symbols of an ELF file.

    Parameters
    ----------
    prefixes : tuple of str
        Read only names that begin with one of these; all if empty.

    Raises
    ------
    ValueError
        As `read_elf`, or it is no such ELF file.
    OSError
        It cannot be read.
    """
    if not _is_elf(file):
        raise ValueError("it is no 64-bit little-endian ELF file")
    with _told():
        symbols, strings = _Reader(_opened(file)).symbol_tables(file)
        # In bulk: pyelftools takes 1.5 s for the 75,000 symbols of libtorch_cpu.so, this takes 0.1 s.
        wanted = {at for prefix in prefixes for at in _occurrences(strings, prefix.encode())}
        undefined, defined = set(), set()
        for at, info, other, section, _, _ in _SYMBOL.iter_unpack(symbols):
            binding = info >> 4
            if not at or (prefixes and at not in wanted) or binding not in (_GLOBAL, _WEAK, _UNIQUE):
                continue
            end = strings.find(b"\0", at)
            if end < 0:
                raise ValueError("a symbol's name has no end")
            name = strings[at:end].decode(errors="replace")
            if section and other & 3 not in _HIDDEN:
                defined.add(name)
            elif not section and binding != _WEAK:
                undefined.add(name)
    return Symbols(undefined=frozenset(undefined), defined=frozenset(defined))


def _occurrences(strings: bytes, prefix: bytes) -> Iterator[int]:
    """Yield where a text stands, also within a name: linkers keep `MPI_Send` as the end of `PMPI_Send`."""
    at = strings.find(prefix)
    while at >= 0:
        yield at
        at = strings.find(prefix, at + 1)


def _is_elf(file: BinaryIO) -> bool:
    file.seek(0)
    header = file.read(64)
    return len(header) == 64 and header[:6] == b"\x7fELF\x02\x01"


def _opened(file: BinaryIO) -> ELFFile:
    return ELFFile(cast("BinaryIO", _Bounded(file)))


class _told:  # noqa: N801  # used as a function
    """Turn whatever a malformed file makes of its reader into a ValueError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        malformed = (
            *(ELFError, ConstructError, struct.error, AttributeError, KeyError, IndexError, TypeError),
            *(AssertionError, OverflowError, UnicodeError, RecursionError),
        )
        if isinstance(error, malformed):
            raise ValueError(f"malformed: {str(error)[:200] or type(error).__name__}") from error


class _Bounded:
    """A file of which only so much is read: tables that go in circles come to an end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = _MAX_READ_BYTES

    def read(self, count: int = -1) -> bytes:
        # Never cheaper than what a loop of tiny reads costs.
        self._left -= max(count, 16) if count >= 0 else _MAX_READ_BYTES + 1
        if self._left < 0:
            raise ValueError("its tables are too large")
        return self._file.read(count)

    def seek(self, at: int, whence: int = io.SEEK_SET) -> int:
        if at < 0 or at > 1 << 62:
            raise ValueError("a table lies outside of it")
        return self._file.seek(at, whence)

    def tell(self) -> int:
        return self._file.tell()


class _Reader:
    def __init__(self, elf: ELFFile) -> None:
        self._elf = elf
        self._stream = elf.stream
        self._loads: list[tuple[int, int, int]] = []  # address, offset, bytes in the file
        self._dynamic: DynamicSegment | None = None
        self._interpreter = ""
        for segment in elf.iter_segments():
            if segment["p_type"] == "PT_LOAD":
                self._loads.append((segment["p_vaddr"], segment["p_offset"], segment["p_filesz"]))
            elif segment["p_type"] == "PT_INTERP":
                self._interpreter = self._text_at(segment["p_offset"], segment["p_filesz"])
            elif isinstance(segment, DynamicSegment) and self._dynamic is None:
                self._dynamic = segment
        self._texts: dict[str, list[str]] = {tag: [] for tag in _STRING_TAGS}
        self._numbers: dict[str, int] = {}
        for tag in self._dynamic.iter_tags() if self._dynamic else ():
            name = str(tag.entry.d_tag)
            if name in _STRING_TAGS:
                self._texts[name].append(getattr(tag, name[3:].lower()))
            else:
                self._numbers.setdefault(name, tag.entry.d_val)

    def object(self) -> ElfObject:
        machine = str(self._elf["e_machine"])
        runpath = _paths(self._texts["DT_RUNPATH"])
        return ElfObject(
            machine=_MACHINES.get(machine, machine.removeprefix("EM_").lower()),
            soname=next(iter(self._texts["DT_SONAME"]), ""),
            needed=tuple(self._texts["DT_NEEDED"]),
            rpath=_paths(self._texts["DT_RPATH"]),
            runpath=runpath,
            versions_needed=dict(self._versions_needed()),
            versions_defined=tuple(self._versions_defined()),
            interpreter=self._interpreter,
            default_directories=not self._numbers.get("DT_FLAGS_1", 0) & _DF_1_NODEFLIB,
        )

    # By the addresses that the loader uses: section headers may be stripped.

    def _versions_needed(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        at = self._table("DT_VERNEED")
        for _ in range(self._numbers.get("DT_VERNEEDNUM", 0) if at else 0):
            _, count, name, first, following = struct.unpack("<HHIII", self._bytes(at, 16))
            here, versions = at + first, []
            for _ in range(count):
                _, flags, _, version, further = struct.unpack("<IHHII", self._bytes(here, 16))
                if not flags & _VER_FLG_WEAK:
                    versions.append(self._text(version))
                here += further
            yield self._text(name), tuple(versions)
            if not following:
                return
            at += following

    def _versions_defined(self) -> Iterator[str]:
        at = self._table("DT_VERDEF")
        for _ in range(self._numbers.get("DT_VERDEFNUM", 0) if at else 0):
            _, _, _, count, _, first, following = struct.unpack("<HHHHIII", self._bytes(at, 20))
            if count:
                name, _ = struct.unpack("<II", self._bytes(at + first, 8))
                yield self._text(name)
            if not following:
                return
            at += following

    def symbol_tables(self, file: BinaryIO) -> tuple[bytes, bytes]:
        """Return the dynamic symbols, 24 bytes each, and their strings."""
        at, strings = self._table("DT_SYMTAB"), self._table("DT_STRTAB")
        if not at or not strings:
            return b"", b""
        length = self._symbols_bytes(at, strings)
        strings_length = self._numbers.get("DT_STRSZ", 0)
        if length > _MAX_SYMBOLS_BYTES or strings_length > _MAX_STRINGS_BYTES:
            raise ValueError("its tables are too large")
        return _whole(file, at, length // 24 * 24), _whole(file, strings, strings_length)

    def _symbols_bytes(self, at: int, strings: int) -> int:
        section = next(iter(self._elf.iter_sections(type="SHT_DYNSYM")), None)
        if section is not None and section["sh_offset"] == at:
            return int(section["sh_size"])
        # Without section headers nothing tells the count; linkers put the strings behind the symbols.
        if strings <= at:
            raise ValueError("the length of its symbol table is unknown")
        return strings - at

    def _table(self, tag: str) -> int:
        address = self._numbers.get(tag)
        if address is None:
            return 0
        for start, offset, length in self._loads:
            if start <= address < start + length:
                return offset + address - start
        raise ValueError(f"{tag} points into no segment")

    def _text(self, start: int) -> str:
        return self._text_at(self._table("DT_STRTAB") + start, _MAX_NAME_BYTES)

    def _text_at(self, at: int, most: int) -> str:
        self._stream.seek(at)
        data = b""
        while b"\0" not in data and len(data) < min(most, _MAX_NAME_BYTES):
            piece = self._stream.read(64)
            if not piece:
                break
            data += piece
        text, end, _ = data.partition(b"\0")
        if not end:
            raise ValueError("a name has no end")
        return text.decode(errors="replace")

    def _bytes(self, at: int, length: int) -> bytes:
        self._stream.seek(at)
        data = self._stream.read(length)
        if len(data) != length:
            raise ValueError("cut short")
        return data


def _paths(texts: list[str]) -> tuple[str, ...]:
    return tuple(word for text in texts[:1] for word in text.split(":"))


def _whole(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    data = file.read(length)
    if len(data) != length:
        raise ValueError("cut short")
    return data
