"""Drivers that each CUDA needs: NVIDIA's table, compared with uv's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from envbuild.rules.knowledge import Row
from envbuild.rules.versions import in_range
from knowledge.claims import Claim
from knowledge.ranges import following
from knowledge.stored import Input
from knowledge.write import new_row

INPUTS = ("nvidia-drivers", "uv-backends")
_FIX = "take a build for an older major release of CUDA, or another site"


def extract_uv(text: str) -> dict[str, dict[str, object]]:
    """Return uv's tables: the driver of each CUDA, and the GPUs for which each ROCm's PyTorch has code."""
    numbers = r"Version::new\(\[([0-9, ]+)\]\)"
    versions = {
        name: ".".join(digits.split(", "))
        for name, digits in re.findall(rf"Self::((?:Cu|Rocm)[0-9]+) => Some\({numbers}\)", text)
    }
    drivers: dict[str, object] = {}
    table = text.partition("static LINUX_CUDA_DRIVERS")[2].partition("});")[0]
    for name, digits in re.findall(rf"TorchBackend::(Cu[0-9]+), {numbers}", table):
        major, *rest = digits.split(", ")
        drivers[versions[name]] = ".".join([major, *(part.zfill(2) for part in rest)])
    gpus: dict[str, list[str]] = {}
    table = text.partition("static LINUX_AMD_GPU_DRIVERS")[2].partition("});")[0]
    for name, gpu in re.findall(r"TorchBackend::(Rocm[0-9]+),\s*AmdGpuArchitecture::(Gfx\w+)", table):
        gpus.setdefault(versions[name], []).append(gpu.lower())
    return {"cuda_drivers": drivers, "rocm_gpus": {key: sorted(value) for key, value in gpus.items()}}


def claims(inputs: Mapping[str, Input]) -> Iterator[Claim]:
    """Yield the oldest driver of each CUDA release in uv's table, as both sources say."""
    nvidia, uv = (inputs[name] for name in INPUTS)
    for release, driver in uv.facts["cuda_drivers"].items():
        for range_, floor in nvidia.facts.items():
            if in_range(release, range_, "branch"):
                yield Claim(f"driver of CUDA {release}", floor, INPUTS[0])
                yield Claim(f"driver of CUDA {release}", driver, INPUTS[1])


def rows(inputs: Mapping[str, Input]) -> Iterator[Row]:
    """Yield the oldest driver of each CUDA release; of the next major it has not been read."""
    nvidia = inputs[INPUTS[0]]
    for range_, floor in {f">={following(nvidia.until)}": "?", **nvidia.facts}.items():
        name = _words(range_)
        reason = f"{name} needs a driver of at least {floor}"
        if floor == "?":
            reason = f"which driver CUDA {following(nvidia.until)} needs has not been read"
        yield new_row(
            "CUDA.driver-floor",
            if_={"gpus.vendor": "nvidia", "cuda.toolkit": range_, "cuda.forward_compat": False},
            needs={"driver.version": "?" if floor == "?" else f">={floor}"},
            reason=reason,
            source=nvidia.origin,
            seen=nvidia.date,
            fix=_FIX,
        )


def _words(range_: str) -> str:
    """Return a range for people: ``CUDA 13`` for ``>=13,<14``, ``CUDA 11`` for ``>=11.1,<12``."""
    first, _, end = range_.removeprefix(">=").partition(",<")
    major = end.isdigit() and Version(first).major == int(end) - 1
    return f"CUDA {int(end) - 1}" if major else f"CUDA {first}"
