"""Real ELF files changed in one way, in place, as patchelf and a newer toolchain would leave them."""

from __future__ import annotations

import io
import struct

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import StringTableSection

_NEEDED, _RPATH, _RUNPATH = 1, 15, 29


def with_search_path(data: bytes, needed: str, path: str, *, rpath: bool) -> bytes:
    """Give a file a DT_RPATH or DT_RUNPATH in the place of a DT_NEEDED, whose text is as long or longer."""
    assert len(path) <= len(needed)
    made = bytearray(data)
    dynamic = _dynamic(data)
    texts = dynamic.elffile.get_section(dynamic["sh_link"])
    assert isinstance(texts, StringTableSection)
    for number, tag in enumerate(dynamic.iter_tags()):
        if tag.entry.d_tag == "DT_NEEDED" and texts.get_string(tag.entry.d_val) == needed:
            at = dynamic["sh_offset"] + 16 * number
            made[at : at + 8] = struct.pack("<Q", _RPATH if rpath else _RUNPATH)
            text = texts["sh_offset"] + tag.entry.d_val
            made[text : text + len(needed)] = path.encode().ljust(len(needed), b"\0")
            return bytes(made)
    raise AssertionError(f"it does not need {needed}")


def with_version(data: bytes, version: str, newer: str) -> bytes:
    """Have a file ask for another version (``GLIBC_2.99``) wherever it asks for one of that length."""
    assert len(version) == len(newer)
    file = ELFFile(io.BytesIO(data))
    section = file.get_section_by_name(".gnu.version_r")
    assert isinstance(section, GNUVerNeedSection)
    made = bytearray(data)
    texts = file.get_section(section["sh_link"])["sh_offset"]
    found = False
    at = section["sh_offset"]
    for need, auxiliaries in section.iter_versions():
        place = at + need["vn_aux"]
        for one in auxiliaries:
            if one.name == version:
                found = True
                made[place : place + 4] = struct.pack("<I", _hash(newer))
                start = texts + one["vna_name"]
                made[start : start + len(newer)] = newer.encode()
            place += one["vna_next"]
        at += need["vn_next"]
    assert found, f"it does not ask for {version}"
    return bytes(made)


def _dynamic(data: bytes) -> DynamicSection:
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return section


def _hash(name: str) -> int:
    """Return a version's hash, by which the loader compares (System V ABI, figure 5-13)."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value
