"""GPU code in an image's files, and the GPUs of a site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.elf.gpu import GpuCode
from envbuild.lock.model import PythonPin
from envbuild.preflight import gpu
from envbuild.preflight.components import components
from envbuild.preflight.report import run_preflight
from envbuild.rules.facts import Fact
from envbuild.rules.from_site import stack_facts
from envbuild.store.store import Store
from tests.support.elves import Elf
from tests.support.fatbins import CUBIN, PTX, cubins, fat_binary, with_sections
from tests.support.images import scan_image
from tests.support.looking import preflight
from tests.support.resolved_specs import wheel
from tests.support.small_images import BASE, Layer, small_image

Told = Callable[..., tuple[int, dict[str, list[Any]]]]

SITE = "/opt/env/lib/python3.11/site-packages"
CUDA = f"{SITE}/torch/lib/libtorch_cuda.so"
LINALG = f"{SITE}/torch/lib/libtorch_cuda_linalg.so"
CUFFT = f"{SITE}/nvidia/cu13/lib/libcufft.so.12"
EXTENSION = f"{SITE}/flash/ops.so"


def library(*binaries: bytes) -> bytes:
    return with_sections(Elf().bytes(), {".nv_fatbin": b"".join(binaries)})


def pin(name: str, version: str, *requires: str) -> PythonPin:
    return wheel(name, version, requires=requires)


TORCH = (
    pin("torch", "2.13.0", "cuda-toolkit"),
    pin("cuda-toolkit", "13.0.2"),
    pin("nvidia-cuda-runtime", "13.0.96"),
)
# As in PyTorch's wheel: one source file is compiled for a single GPU besides, and one library for fewer.
MAIN = [cubins(75, 80, 90, 100)] * 5
LAYER: Layer = {
    CUDA: library(*MAIN, cubins(75, 80, 89, 90, 100)),
    LINALG: library(cubins(80, 90, 100)),
    CUFFT: library(cubins(75)),
}


def image(tmp_path: Path, layer: Layer = LAYER) -> Path:
    return small_image(tmp_path, BASE, layer, recipes={"pytorch": "2.13.0"}, python=TORCH)


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Check an image for some GPUs; return the exit code and what is said of GPU code, id → finding."""

    def check(path: Path, *gpus: str) -> tuple[int, dict[str, list[Any]]]:
        there = tmp_path / "here.yaml"
        there.write_text(f"name: here\ngpus: {{vendor: nvidia, architectures: [{', '.join(gpus)}]}}\n")
        with pytest.raises(SystemExit) as ended:
            main(["check", str(path), "--store", str(tmp_path / "store"), "--site", str(there), "--json"])
        document = json.loads(capsys.readouterr().out)
        found: dict[str, list[Any]] = {}
        for one in document["findings"]:
            found.setdefault(one["id"], []).append(one)
        return int(ended.value.code or 0), found

    return check


def test_what_a_framework_was_compiled_for_is_read_from_its_files(tmp_path: Path) -> None:
    scan = scan_image(image(tmp_path), Store(tmp_path / "store"))
    found = run_preflight(scan)
    assert found.gpu_code[CUDA] == GpuCode(6, {"sm_100": 6, "sm_75": 6, "sm_80": 6, "sm_89": 1, "sm_90": 6})
    # What a single source file is for besides is no GPU that the framework serves.
    code = Fact(("sm_75", "sm_80", "sm_90", "sm_100"), f"image:{CUDA}")
    facts = stack_facts(found.facts)
    assert found.facts["frameworks.pytorch.architectures"] == code
    assert facts["frameworks.pytorch.architectures"] == code
    assert facts["frameworks.pytorch.published"].source == "table:code-of-framework"
    # What the store keeps of it is the same.
    assert preflight(scan.image, Store(tmp_path / "store")) == found


def test_a_gpu_that_everything_serves(tmp_path: Path, told: Told) -> None:
    code, found = told(image(tmp_path), "sm_90")
    assert code == 0
    (finding,) = found[gpu.GPU_CODE]
    assert (finding["status"], finding["observed"]) == ("PASS", "sm_90: 2 files")
    assert found["GPU.arch-in-build"][0]["status"] == "PASS"
    # The table of what was published has more than these files.
    (other,) = found["GPU.build-as-published"]
    assert (other["status"], "sm_86" in other["observed"]) == ("SKIP", True)


def test_a_gpu_that_nothing_serves_is_told_with_file_need_and_rule(tmp_path: Path, told: Told) -> None:
    code, found = told(image(tmp_path), "sm_90", "sm_70")
    assert code == 4
    assert [(one["status"], one["expected"]) for one in found[gpu.GPU_CODE]] == [
        ("FAIL", "code for sm_70")
    ] * 2
    assert found[gpu.GPU_CODE][0]["observed"] == f"{CUDA} has sm_75, sm_80, sm_89, sm_90, sm_100"
    (rule,) = found["GPU.arch-in-build"]
    assert rule["status"] == "FAIL"
    assert rule["subject"] == "pytorch"
    path, value = "frameworks.pytorch.architectures", "sm_75, sm_80, sm_90, sm_100"
    assert {"path": path, "value": value, "origin": f"image:{CUDA}"} in rule["facts"]


def test_a_library_that_a_frameworks_makers_left_out_is_told_and_no_failure(
    tmp_path: Path, told: Told
) -> None:
    code, found = told(image(tmp_path), "sm_75")
    assert code == 0
    (finding,) = found[gpu.GPU_CODE]
    assert (finding["status"], finding["observed"]) == ("SKIP", f"{LINALG} has sm_80, sm_90, sm_100")


@pytest.mark.parametrize(
    ("binary", "status"),
    [
        (cubins(80), "PASS"),
        (cubins(86), "FAIL"),
        (fat_binary((PTX, 70, 0)), "PASS"),
        (fat_binary((PTX, 90, 0)), "FAIL"),
        (fat_binary((CUBIN, 90, 0), (PTX, 80, 0)), "PASS"),
    ],
    ids=["its own", "a later minor", "older PTX", "newer PTX", "PTX beside"],
)
def test_an_extension_of_nobody_is_judged_by_itself(
    tmp_path: Path, told: Told, binary: bytes, status: str
) -> None:
    path = image(tmp_path, {**LAYER, EXTENSION: library(binary)})
    code, found = told(path, "sm_80")
    assert [one["status"] for one in found[gpu.GPU_CODE]] == [status]
    assert code == (4 if status == "FAIL" else 0)


def test_a_form_that_is_not_known_leaves_the_published_list(tmp_path: Path, told: Told) -> None:
    path = image(tmp_path, {**LAYER, LINALG: library(b"\x01another form of theirs")})
    found = preflight(path, Store(tmp_path / "store"))
    assert found.passed, "the loader takes the file"
    assert found.gpu_code[LINALG] == GpuCode(0, {})
    assert "frameworks.pytorch.architectures" not in found.facts
    code, findings = told(path, "sm_86")
    assert code == 0
    assert findings["GPU.arch-in-build"][0]["status"] == "PASS"
    assert [one["status"] for one in findings[gpu.GPU_CODE]] == ["PASS"]


def test_nothing_is_told_where_the_site_names_no_gpu() -> None:
    assert list(gpu.checks({EXTENSION: GpuCode(1, {"sm_80": 1})}, ())) == []
    assert list(gpu.checks({}, ("sm_80",))) == []


@pytest.mark.parametrize(
    ("path", "vendors"),
    [
        (CUFFT, True),
        ("/opt/rocm/lib/librocblas.so.4", True),
        ("/usr/lib/libnccl.so.2", True),
        (f"{SITE}/torch/lib/libcudnn.so.9", True),
        (CUDA, False),
        (f"{SITE}/x/libcustom.so", False),
        (f"{SITE}/torch/lib/libc10_cuda.so", False),
    ],
)
def test_whose_a_file_is(path: str, vendors: bool) -> None:
    assert components().is_vendors(path) is vendors


def test_amd_s_gpus_run_code_for_their_own_target_alone() -> None:
    code = {EXTENSION: GpuCode(2, {"gfx908": 1, "gfx90a": 2})}
    assert [one.status for one in gpu.checks(code, ("gfx90a", "gfx908"))] == ["PASS"]
    (wrong,) = gpu.checks(code, ("gfx90a", "gfx942"))
    assert (wrong.status, wrong.expected) == ("FAIL", "code for gfx942")
    assert wrong.observed == f"{EXTENSION} has gfx908, gfx90a"
