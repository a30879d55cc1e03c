"""GPU code that NVIDIA's and AMD's compilers wrote: two small wheels of JAX, as they were published."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envbuild.elf.gpu import read_gpu_code

# What .bazelrc of JAX 0.10 names for CUDA 13.
CUDA = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120")
# Of ROCm's, with the GPUs of the machines that are described in sites/.
ROCM = {"gfx90a", "gfx942", "gfx950", "gfx1201"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheels")
    wheels = ["jax-cuda13-plugin==0.10.2", "jax-rocm7-plugin==0.10.2"]
    words = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11", f"--dest={place}"]
    subprocess.run([sys.executable, "-m", "pip", "download", *words, *wheels], check=True, timeout=600)
    for wheel in place.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
    return place


@pytest.mark.parametrize("name", ["_linalg.so", "_prng.so", "_solver.so"])
def test_a_wheel_for_cuda_holds_what_its_makers_say(unpacked: Path, name: str) -> None:
    with (unpacked / "jax_cuda13_plugin" / name).open("rb") as file:
        code = read_gpu_code(file)
    assert code is not None
    assert code.architectures == CUDA
    assert set(code.held.values()) == {code.binaries}


def test_a_wheel_for_rocm_is_read_through_its_compression(unpacked: Path) -> None:
    path = unpacked / "jax_rocm7_plugin/_solver.so"
    assert b"__CLANG_OFFLOAD_BUNDLE__" not in path.read_bytes(), "it is compressed"
    with path.open("rb") as file:
        code = read_gpu_code(file)
    assert code is not None
    assert code.binaries == 2
    assert set(code.architectures) >= ROCM
    assert all(name.startswith("gfx") for name in code.held)
