"""The loader's cache, read as `ldconfig` writes it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.elf.loader import cached_names
from tests.support.elves import ld_so_cache

SAMPLE = ld_so_cache("libc.so.6", "libz.so.1")


def test_names_are_those_that_ldconfig_prints() -> None:
    printed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^\t(\S+) \(", printed, flags=re.MULTILINE))
    assert len(names) > 10
    assert cached_names(Path("/etc/ld.so.cache").read_bytes()) == tuple(sorted(names))


def test_an_older_form_may_come_first() -> None:
    assert cached_names(b"ld.so-1.7.0\0" + bytes(20) + SAMPLE) == ("libc.so.6", "libz.so.1")


@pytest.mark.parametrize(
    "data",
    [b"", b"glibc-ld.so.cache1.1", SAMPLE[:60], SAMPLE[:-1], SAMPLE[:20] + b"\xff" * 4 + SAMPLE[24:]],
)
def test_what_is_no_cache(data: bytes) -> None:
    assert cached_names(data) is None


@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255))
def test_a_damaged_cache_is_read_or_none(place: int, byte: int) -> None:
    damaged = SAMPLE[:place] + bytes([byte]) + SAMPLE[place + 1 :]
    names = cached_names(damaged)
    assert names is None or all(name.isascii() for name in names)
