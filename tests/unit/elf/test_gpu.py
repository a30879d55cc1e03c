"""For which GPUs a library was compiled, read from the headers of its fat binaries."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.elf import gpu
from envbuild.elf.gpu import GpuCode, read_gpu_code
from tests.support.elves import Elf
from tests.support.fatbins import (
    CUBIN,
    FAMILY,
    OTHER,
    OWN,
    PTX,
    bundle,
    compressed,
    cubins,
    fat_binary,
    pages,
    with_sections,
)

PLAIN = Elf(soname="libx.so").bytes()
NAMES = {"nv": ".nv_fatbin", "rel": "__nv_relfatbin", "hip": ".hip_fatbin", "text": ".text"}


def held(**sections: bytes) -> Mapping[str, int]:
    whole = with_sections(PLAIN, {NAMES[name]: data for name, data in sections.items()})
    found = read_gpu_code(io.BytesIO(whole))
    return found.held if found else {}


def test_what_nvidia_s_compiler_lays_down() -> None:
    first = fat_binary((CUBIN, 80, 0), (CUBIN, 90, OWN), (CUBIN, 103, FAMILY), (PTX, 120, 0), header=112)
    second = fat_binary((CUBIN, 80, 1 << 15), (OTHER, 75, 0), code=b"")
    sections = {".nv_fatbin": first + bytes(24) + second, "__nv_relfatbin": cubins(80)}
    code = read_gpu_code(io.BytesIO(with_sections(PLAIN, sections)))
    assert code == GpuCode(3, {"compute_120": 1, "sm_103f": 1, "sm_80": 3, "sm_90a": 1})
    assert code.architectures == ("sm_80", "sm_90a", "sm_103f", "compute_120")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("method", ["zstd", "zlib"])
def test_what_amd_s_compiler_lays_down(version: int, method: str) -> None:
    plain = bundle("gfx90a:sramecc+:xnack-", "gfx942")
    large = bundle("gfx942", "gfx9-4-generic", code=b"x" * (1 << 20))
    packed = compressed(large, version=version, method=method)
    expected = {"gfx9-4-generic": 1, "gfx90a": 1, "gfx942": 2}
    assert held(hip=pages(plain, packed)) == expected
    assert held(hip=pages(packed, plain)) == expected


def test_a_compressed_bundle_of_the_first_version_is_the_last_of_its_section() -> None:
    assert held(hip=compressed(bundle("gfx906"), version=1)) == {"gfx906": 1}


def test_code_for_nobody_is_no_code() -> None:
    assert read_gpu_code(io.BytesIO(PLAIN)) is None
    assert read_gpu_code(io.BytesIO(b"a text")) is None
    assert held(text=cubins(80)) == {}
    assert held(nv=bytes(64)) == {}


class _Counting(io.BytesIO):
    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.mark.parametrize(
    "sections",
    [
        {".nv_fatbin": fat_binary((CUBIN, 80, 0), (CUBIN, 90, 0), code=bytes(4 << 20))},
        {".hip_fatbin": bundle("gfx90a", "gfx942", code=bytes(4 << 20))},
    ],
    ids=["nvidia", "amd"],
)
def test_the_code_itself_is_not_read(sections: Mapping[str, bytes]) -> None:
    file = _Counting(with_sections(PLAIN, sections))
    assert read_gpu_code(file)
    assert file.count < 2000


def _changed(data: bytes, at: int, form: str, value: int) -> bytes:
    whole = bytearray(data)
    struct.pack_into(form, whole, at, value)
    return bytes(whole)


@pytest.mark.parametrize(
    ("section", "data"),
    [
        ("nv", _changed(cubins(80), 0, "<I", 0x1EE55A01)),
        ("nv", _changed(cubins(80), 4, "<H", 2)),
        ("nv", _changed(cubins(80), 8, "<Q", 1 << 60)),
        ("nv", _changed(cubins(80), 16 + 4, "<I", 0)),
        ("nv", _changed(cubins(80), 16 + 8, "<Q", 1 << 60)),
        ("hip", b"another form" * 8),
        ("hip", _changed(bundle("gfx906"), 24, "<Q", 1 << 40)),
        ("hip", _changed(bundle("gfx906"), 32, "<Q", 1 << 40)),
        ("hip", _changed(bundle("gfx906"), 48, "<Q", 1 << 40)),
        ("hip", _changed(compressed(bundle("gfx906")), 4, "<H", 4)),
        ("hip", _changed(compressed(bundle("gfx906")), 8, "<Q", 0)),
        ("hip", _changed(compressed(bundle("gfx906")), 8, "<Q", 1 << 60)),
        ("hip", _changed(compressed(bundle("gfx906")), 32, "<I", 0)),
    ],
)
def test_what_is_damaged_or_of_another_form_is_told(section: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bundle|fat binary|cut short|too long"):
        held(**{section: data})


def test_a_place_beyond_all_files_is_told() -> None:
    whole = with_sections(PLAIN, {".nv_fatbin": cubins(80)})
    (table,) = struct.unpack_from("<Q", whole, 40)
    # Of the table of sections, and of the first section in it.
    for place in (40, table + 64 + 24):
        with pytest.raises(ValueError, match="outside"):
            read_gpu_code(io.BytesIO(_changed(whole, place, "<Q", (1 << 64) - 1)))


@pytest.mark.parametrize("bound", ["_MAX_STEPS", "_MAX_READ_BYTES"])
@pytest.mark.parametrize(
    ("section", "content"),
    [
        (".nv_fatbin", cubins(80) * 40 + bytes(4096)),
        (".hip_fatbin", pages(bundle("gfx906", code=b""), bytes(4096)) * 4),
    ],
)
def test_a_file_without_end_comes_to_one(
    section: str, content: bytes, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections may overlap, and holes cost nothing: a small file may say that it has terabytes."""
    whole = with_sections(PLAIN, [(section, content)] * 20)
    assert read_gpu_code(io.BytesIO(whole))
    monkeypatch.setattr(gpu, bound, 500)
    with pytest.raises(ValueError, match="too many"):
        read_gpu_code(io.BytesIO(whole))


def test_a_bundle_that_compresses_badly_is_read() -> None:
    noise = hashlib.shake_128(b"noise").digest(1 << 20)
    assert held(hip=compressed(bundle("gfx906", "gfx942", code=noise))) == {"gfx906": 1, "gfx942": 1}


WHOLE = with_sections(
    PLAIN,
    {".nv_fatbin": cubins(80, 90), ".hip_fatbin": pages(compressed(bundle("gfx906")), bundle("gfx942"))},
)


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8), st.integers(0, len(WHOLE)))
def test_a_hostile_file_is_read_or_refused(at: int, noise: bytes, end: int) -> None:
    content = (WHOLE[:at] + noise + WHOLE[at + len(noise) :])[: max(end, at)]
    try:
        read_gpu_code(io.BytesIO(content))
    except ValueError:
        return
