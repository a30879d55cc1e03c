"""ELF files, read: what a loader wants to know, symbols, and what is malformed."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.elf.read import ElfObject, Symbols, TableBudget, read_elf, read_symbols
from tests.support.elves import Elf

SAMPLE = Elf(
    soname="libone.so.1",
    needed=("libtwo.so.2", "libc.so.6"),
    rpath="/a:$ORIGIN/../b",
    versions_needed={"libc.so.6": ("GLIBC_2.34", "GLIBC_2.2.5"), "libtwo.so.2": ("TWO_1",)},
    weak_versions=("TWO_1",),
    versions_defined=("libone.so.1", "ONE_1.0", "ONE_1.1"),
    undefined=("MPI_Send", "puts"),
    weak=("maybe",),
    defined=("PMPI_Init", "one"),
)


def test_what_a_loader_wants_to_know() -> None:
    assert read_elf(io.BytesIO(SAMPLE.bytes())) == ElfObject(
        machine="amd64",
        soname="libone.so.1",
        needed=("libtwo.so.2", "libc.so.6"),
        rpath=("/a", "$ORIGIN/../b"),
        versions_needed={"libc.so.6": ("GLIBC_2.34", "GLIBC_2.2.5"), "libtwo.so.2": ()},
        versions_defined=("libone.so.1", "ONE_1.0", "ONE_1.1"),
    )


def test_an_executable_of_another_machine() -> None:
    data = Elf(machine="arm64", interpreter="/lib/ld-linux-aarch64.so.1", runpath="/r", flags_1=0x800).bytes()
    assert read_elf(io.BytesIO(data)) == ElfObject(
        machine="arm64", runpath=("/r",), interpreter="/lib/ld-linux-aarch64.so.1", default_directories=False
    )
    assert read_elf(io.BytesIO(Elf(machine="ppc64").bytes())) == ElfObject(machine="machine-21")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#!/bin/sh\n" + bytes(64),
        b"\x7fELF\x01\x01" + bytes(100),
        b"\x7fELF\x02\x02" + bytes(100),
        b"\x7fELF\x02\x01",
    ],
    ids=["empty", "script", "32-bit", "big-endian", "stub"],
)
def test_what_is_no_such_elf_file(data: bytes) -> None:
    assert read_elf(io.BytesIO(data)) is None
    with pytest.raises(ValueError, match="no 64-bit"):
        read_symbols(io.BytesIO(data))


def test_an_object_file_is_nothing_to_load() -> None:
    data = bytearray(SAMPLE.bytes())
    data[16] = 1
    assert read_elf(io.BytesIO(data)) is None


def test_symbols() -> None:
    data = SAMPLE.bytes()
    assert read_symbols(io.BytesIO(data)) == Symbols(
        undefined=frozenset({"MPI_Send", "puts"}), defined=frozenset({"PMPI_Init", "one"})
    )
    assert read_symbols(io.BytesIO(data), ("MPI_", "PMPI_")) == Symbols(
        undefined=frozenset({"MPI_Send"}), defined=frozenset({"PMPI_Init"})
    )


def test_a_name_that_is_the_end_of_another_is_found() -> None:
    """Linkers keep one text for both; the shorter name begins within it."""
    data = Elf(defined=("PMPI_Init", "MPI_Init")).bytes()
    # The second symbol's name now lies within the first one's.
    merged = data.replace(b"\0MPI_Init\0", b"\0XXXXXXXX\0")
    at = 64 + 3 * 56 + 2 * 24
    assert merged[at : at + 4] == (11).to_bytes(4, "little")
    merged = merged[:at] + (2).to_bytes(4, "little") + merged[at + 4 :]
    assert read_symbols(io.BytesIO(merged), ("MPI_",)).defined == {"MPI_Init"}


def test_names_of_symbols_are_bounded() -> None:
    """Each of 2,000 symbols could name the rest of one long text."""
    names = tuple(f"MPI_{number}" for number in range(2000))
    data = bytearray(Elf(defined=names).bytes())
    begin = data.index(b"MPI_0\0")
    end = data.index(b"MPI_1999\0") + 8
    data[begin:end] = (b"MPI_" * len(names) * 3)[: end - begin]
    with pytest.raises(ValueError, match="the names of its symbols overlap"):
        read_symbols(io.BytesIO(data), ("MPI_", "PI_", "I_", "_"))


def test_tables_of_many_files_share_a_budget() -> None:
    data, budget = SAMPLE.bytes(), TableBudget(20_000)
    assert read_elf(io.BytesIO(data), budget) is not None
    with pytest.raises(ValueError, match="the tables of these files are too large"):
        [read_elf(io.BytesIO(data), budget) for _ in range(1000)]
    with pytest.raises(ValueError, match="the tables of these files are too large"):
        read_symbols(io.BytesIO(data), (), budget)
    assert read_elf(io.BytesIO(data)) is not None


@given(data=st.data())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_whatever_is_malformed_is_a_value_error(data: st.DataObject) -> None:
    content = bytearray(SAMPLE.bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(6, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    for read in (read_elf, read_symbols):
        with contextlib.suppress(ValueError):
            read(io.BytesIO(cut))


def test_a_table_that_goes_in_circles_comes_to_an_end() -> None:
    elf = Elf(versions_needed={"libc.so.6": ("A",)})
    data = bytearray(elf.bytes())
    at = data.index(b"\x01\x00\x01\x00")
    while data[at + 8 : at + 12] != b"\x10\x00\x00\x00":
        at = data.index(b"\x01\x00\x01\x00", at + 1)
    data[at + 2 : at + 4] = b"\xff\xff"
    assert read_elf(io.BytesIO(data)) is not None  # 65,535 times the same entry
    number = (0x6FFFFFFF).to_bytes(8, "little")
    place = data.index(number) + 8
    data[place : place + 4] = b"\xff\xff\xff\xff"
    data[at + 12] = 0  # an end that the count denies
    assert read_elf(io.BytesIO(data)) is not None
    data[at + 2 : at + 4] = b"\x01\x00"
    data[at + 12 : at + 16] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(ValueError, match="cut short"):
        read_elf(io.BytesIO(data))


def host_objects() -> list[Path]:
    found = Path("/usr/lib").rglob("lib[a-m]*.so.*")
    return [Path(sys.executable).resolve(), *sorted(path for path in found if path.is_file())[:60]]


def test_pyelftools_own_sections_say_the_same_of_this_hosts_libraries() -> None:
    """Its version sections and symbol tables are found by section headers, ours by addresses."""
    assert len(host_objects()) > 10
    for path in host_objects():
        with path.open("rb") as file:
            ours, symbols, elf = read_elf(file), read_symbols(file), ELFFile(file)
            if ours is None:
                continue
            needs = elf.get_section_by_name(".gnu.version_r")
            resolved = (
                {need.name for need, _ in needs.iter_versions()}
                if isinstance(needs, GNUVerNeedSection)
                else set()
            )
            assert ours.versions_needed.keys() == resolved, path
            defines = elf.get_section_by_name(".gnu.version_d")
            names = (
                [next(iter(names)).name for _, names in defines.iter_versions()]
                if isinstance(defines, GNUVerDefSection)
                else []
            )
            assert list(ours.versions_defined) == names, path
            table = elf.get_section_by_name(".dynsym")
            assert isinstance(table, SymbolTableSection)
            undefined = {
                symbol.name
                for symbol in table.iter_symbols()
                if symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
            }
            assert symbols.undefined == undefined - {""}, path
