"""Judging what an image gains: what would break, or come twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.events import Event, TaskAdvanced, TaskStarted
from envbuild.extend.judge import AdditionJudgement, judge_addition, packages_for_cuda
from envbuild.extend.packages import Addition
from envbuild.image.files import ImageFiles
from envbuild.lock.model import PythonPin
from tests.support.foreign_images import IMAGE, PYTHON, SITE, Tree, distribution, opened, probed
from tests.support.resolved_specs import wheel

TORCH = distribution("torch", "2.4.0+cu124")
OLD_MODULE = b"\x7fELF numpy.core._multiarray_umath"
NEW_MODULE = b"\x7fELF numpy._core._multiarray_umath numpy.core._multiarray_umath"


DEBIAN = "/usr/lib/python3/dist-packages"


def test_reading_compiled_modules_shows_progress(tmp_path: Path) -> None:
    events: list[Event] = []
    trees = (
        distribution("numpy", "1.26.4"),
        distribution("scipy", "1.11", "numpy", files={"a.so": OLD_MODULE}),
    )
    with opened(tmp_path, PYTHON, *trees) as image:
        python = probed(image)
        pins, replaced = (wheel("numpy", "2.1.0"),), (python.installed["numpy"],)
        addition = Addition(python=python, pins=pins, replaced=replaced)
        judge_addition(addition, image, at=IMAGE, emit=events.append)
    (started,) = (event for event in events if isinstance(event, TaskStarted))
    advanced = sum(event.bytes for event in events if isinstance(event, TaskAdvanced))
    assert started.total_bytes == advanced == len(OLD_MODULE)


def judged(image: ImageFiles, *pins: PythonPin) -> AdditionJudgement:
    python = probed(image, sites=[SITE, DEBIAN])
    replaced = tuple(python.installed[pin.name] for pin in pins if pin.name in python.installed)
    return judge_addition(Addition(python=python, pins=pins, replaced=replaced), image, at=IMAGE)


@pytest.mark.parametrize(
    ("trees", "pins", "problem"),
    [
        (
            [{f"{SITE}/six-1.16.0.egg-info": "Metadata-Version: 1.1\nName: six\nVersion: 1.16.0\n"}],
            [wheel("six", "1.17.0")],
            "six 1.16.0 cannot be replaced: nothing in .* lists its files",
        ),
        ([TORCH], [wheel("torchvision", "0.19.0+cpu")], "is a build for cpu, and the image's torch"),
        ([TORCH], [wheel("torchvision", "0.19.0+cu121")], "is a build for cu121"),
        (
            [distribution("torch", "2.4.0+cpu")],
            [wheel("torchvision", "0.19.0")],
            r"torchvision 0.19.0 is a build for GPUs, .* torch 2.4.0\+cpu",
        ),
        ([TORCH], [wheel("torch", "2.4.0+cpu")], "a build without GPUs one for GPUs"),
        (
            [distribution("torch", "2.4.0", "nvidia-nccl-cu12; platform_system == 'Linux'")],
            [wheel("torch", "2.4.0+cpu", requires=["sympy"])],
            "a build without GPUs one for GPUs",
        ),
        (
            [distribution("torch", "2.4.0a0+f70bd71a48.nv24.06")],
            [wheel("torch", "2.4.0", requires=["sympy"])],
            "a build without GPUs one for GPUs",
        ),
        (
            [distribution("nvidia-nccl-cu12", "2.20.5")],
            [wheel("nvidia-nccl-cu13", "2.27")],
            "the image has CUDA 12, and parts of CUDA 13",
        ),
        (
            [{"/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127": ""}],
            [wheel("nvidia-cuda-runtime", "13.0.96"), wheel("cupy-cuda11x", "13.0")],
            "parts of CUDA 11 would come along: cupy-cuda11x 13.0",
        ),
        (
            [
                distribution("numpy", "1.26.4"),
                distribution("scipy", "1.11", "numpy", files={"a.cpython-311.so": OLD_MODULE}),
            ],
            [wheel("numpy", "2.1.0")],
            "numpy 2.1.0 would replace 1.26.4, for which modules of these are compiled: scipy",
        ),
    ],
)
def test_what_would_break_is_refused(
    trees: list[Tree], pins: list[PythonPin], problem: str, tmp_path: Path
) -> None:
    with opened(tmp_path, PYTHON, *trees) as image:
        judgement = judged(image, *pins)
    assert judgement.errors
    with pytest.raises(type(judgement.errors[0]), match=problem):
        raise judgement.errors[0]


@pytest.mark.parametrize(
    ("trees", "pins"),
    [
        ([TORCH], [wheel("torchvision", "0.19.0+cu124"), wheel("mine", "1+site")]),
        ([TORCH], [wheel("torch", "2.5.0+cu124", requires=["nvidia-nccl-cu12"])]),
        ([], [wheel("torch", "2.4.0+cpu"), wheel("nvidia-nccl-cu13", "2.27")]),
        ([distribution("torch", "2.4.0", "sympy")], [wheel("torch", "2.4.0+cpu")]),
        ([distribution("nvidia-nccl-cu12", "2.20.5")], [wheel("nvidia-cublas-cu12", "12.4")]),
        (
            [
                distribution("numpy", "1.26.4", files={"own.so": OLD_MODULE}),
                distribution("scipy", "1.13", "numpy", files={"a.so": NEW_MODULE}),
            ],
            [wheel("numpy", "2.1.0")],
        ),
        (
            [distribution("numpy", "1.24.2", site=DEBIAN, files={"core/a.so": OLD_MODULE})],
            [wheel("numpy", "2.1.0")],
        ),
        (
            [
                distribution("numpy", "1.26.0"),
                distribution("scipy", "1.11", "numpy", files={"a.so": OLD_MODULE}),
            ],
            [wheel("numpy", "1.26.4")],
        ),
    ],
)
def test_what_fits_is_let_through(trees: list[Tree], pins: list[PythonPin], tmp_path: Path) -> None:
    with opened(tmp_path, PYTHON, *trees) as image:
        assert judged(image, *pins).errors == ()


def test_what_may_not_work_is_a_warning(tmp_path: Path) -> None:
    compiled = replace(
        wheel("flash-attn", "2.6", requires=["torch"]), file="flash_attn-2.6-cp311-cp311-linux_x86_64.whl"
    )
    trees = (TORCH, distribution("numpy", "1.24.2", site=DEBIAN))
    with opened(tmp_path, PYTHON, *trees) as image:
        judgement = judged(image, compiled, wheel("numpy", "1.26.4"))
    assert judgement.errors == ()
    first, second = judgement.warnings
    assert "flash-attn 2.6 has compiled code" in first
    assert "2.4.0+cu124" in first
    assert f"numpy 1.24.2 stays in `{DEBIAN}`" in second


def test_packages_for_cuda_are_known_by_their_names_and_builds(tmp_path: Path) -> None:
    cuda = [wheel("jax-cuda13-plugin", "0.10.2"), wheel("nvidia-cublas", "13.1"), wheel("torch", "2.9+cu130")]
    with opened(tmp_path, PYTHON) as image:
        addition = Addition(python=probed(image), pins=(wheel("jax", "0.10.2"), *cuda))
    assert packages_for_cuda(addition) == ["jax-cuda13-plugin", "nvidia-cublas", "torch"]
