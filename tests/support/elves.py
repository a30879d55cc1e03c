"""Tiny ELF files, made to order: the loader maps them and lists what they need; there is nothing to run."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MACHINES = {"amd64": 62, "arm64": 183, "ppc64": 21}
_NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 6, 10, 14, 15, 29
_GNU_STACK = 0x6474E551
_FLAGS_1, _VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFB, *range(0x6FFFFFFC, 0x70000000)


@dataclass(frozen=True, kw_only=True)
class Elf:
    """What a file is to ask for and to offer; the fields are those of `envbuild.elf.read`."""

    machine: str = "amd64"
    soname: str = ""
    needed: Sequence[str] = ()
    rpath: str = ""
    runpath: str = ""
    versions_needed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    weak_versions: Sequence[str] = ()
    versions_defined: Sequence[str] = ()
    undefined: Sequence[str] = ()
    weak: Sequence[str] = ()
    defined: Sequence[str] = ()
    interpreter: str = ""
    flags_1: int = 0
    texts: Sequence[str] = ()
    constants: bytes = b""
    """Its section ``.rodata``; without any there are no section headers."""

    def bytes(self) -> bytes:
        return _Writer(self).whole()


class _Writer:
    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self.strings = b"\0"

    def text(self, name: str) -> int:
        at = len(self.strings)
        self.strings += name.encode() + b"\0"
        return at

    def whole(self) -> bytes:
        elf = self.elf
        symbols = bytes(24)
        for names, info, section in ((elf.undefined, 0x10, 0), (elf.weak, 0x20, 0), (elf.defined, 0x12, 1)):
            for name in names:
                symbols += struct.pack("<IBBHQQ", self.text(name), info, 0, section, 4096 * section, 0)
        needs, definitions = self.needs(), self.definitions()
        texts = [(_NEEDED, name) for name in elf.needed]
        texts += [
            (tag, name)
            for tag, name in ((_SONAME, elf.soname), (_RPATH, elf.rpath), (_RUNPATH, elf.runpath))
            if name
        ]
        entries = [(tag, self.text(name)) for tag, name in texts]
        for text in elf.texts:
            self.text(text)
        interpreter = elf.interpreter.encode() + b"\0" if elf.interpreter else b""
        at = 64 + 56 * (3 + bool(interpreter))
        places = {}
        body = b""
        for name, data in (
            ("symbols", symbols),
            ("strings", self.strings),
            ("needs", needs),
            ("definitions", definitions),
            ("interpreter", interpreter),
        ):
            body += bytes(-(at + len(body)) % 8) if name != "strings" else b""
            places[name] = at + len(body)
            body += data
        entries += [(_SYMTAB, places["symbols"]), (_STRTAB, places["strings"]), (_STRSZ, len(self.strings))]
        if needs:
            entries += [(_VERNEED, places["needs"]), (_VERNEEDNUM, len(elf.versions_needed))]
        if definitions:
            entries += [(_VERDEF, places["definitions"]), (_VERDEFNUM, len(elf.versions_defined))]
        if elf.flags_1:
            entries.append((_FLAGS_1, elf.flags_1))
        body += bytes(-(at + len(body)) % 8)
        dynamic = b"".join(struct.pack("<QQ", *entry) for entry in [*entries, (0, 0)])
        start, end = at + len(body), at + len(body) + len(dynamic)
        # The loader adjusts the dynamic table in place, and wants to know that no stack need be executable.
        segments = [(1, 0, end), (2, start, len(dynamic)), (_GNU_STACK, 0, 0)]
        if interpreter:
            segments.append((3, places["interpreter"], len(interpreter)))
        sections = self.sections(end) if elf.constants else b""
        header = struct.pack(
            "<16sHHIQQQIHHHHHH",
            b"\x7fELF\x02\x01\x01",
            *(3, MACHINES[elf.machine], 1, 0, 64, end if sections else 0, 0, 64, 56, len(segments), 64),
            *((3, 2) if sections else (0, 0)),
        )
        table = b"".join(
            struct.pack("<IIQQQQQQ", kind, 6, place, place, place, length, length, 4096 if kind == 1 else 8)
            for kind, place, length in segments
        )
        return header + table + body + dynamic + sections

    def sections(self, at: int) -> bytes:
        """Return three section headers, the constants and the names of sections."""
        names = b"\0.rodata\0.shstrtab\0"
        constants, texts = at + 3 * 64, at + 3 * 64 + len(self.elf.constants)
        rows = ((0, 0, 0, 0), (1, 1, constants, len(self.elf.constants)), (9, 3, texts, len(names)))
        headers = (
            struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, place, length, 0, 0, 1, 0)
            for name, kind, place, length in rows
        )
        return b"".join(headers) + self.elf.constants + names

    def needs(self) -> bytes:
        result = b""
        libraries = list(self.elf.versions_needed.items())
        for number, (library, versions) in enumerate(libraries, 1):
            following = 16 + 16 * len(versions) if number < len(libraries) else 0
            result += struct.pack("<HHIII", 1, len(versions), self.text(library), 16, following)
            for index, version in enumerate(versions, 1):
                flags = 2 if version in self.elf.weak_versions else 0
                further = 16 if index < len(versions) else 0
                result += struct.pack("<IHHII", 0, flags, index + 1, self.text(version), further)
        return result

    def definitions(self) -> bytes:
        result = b""
        for number, version in enumerate(self.elf.versions_defined, 1):
            following = 28 if number < len(self.elf.versions_defined) else 0
            result += struct.pack("<HHHHIII", 1, number == 1, number, 1, 0, 20, following)
            result += struct.pack("<II", self.text(version), 0)
        return result


def ld_so_cache(*names: str) -> bytes:
    """Make a loader's cache that knows libraries by these names, as `ldconfig` would after finding them."""
    start = 48 + 24 * len(names)
    texts = b"".join(name.encode() + b"\0" for name in names)
    entries = b""
    for number, name in enumerate(names):
        at = start + sum(len(one) + 1 for one in names[:number])
        entries += struct.pack("<iIIIQ", 0x0303, at, at, 0, 0)
        assert texts[at - start :].startswith(name.encode())
    return struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(names), len(texts)) + entries + texts
