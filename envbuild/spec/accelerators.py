"""Accelerators: one row for each family of GPUs, with its names in specs, machines and packages."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A family of GPUs and its software."""

    name: str
    """In specs and names of variants (``cuda``)."""
    vendor: str
    """In site files (``nvidia``)."""
    apptainer_flag: str
    """Apptainer's option that shows GPUs and the host's driver libraries in a container."""
    distributions: tuple[str, ...]
    """Beginnings of the names of the vendor's distributions."""
    libraries: tuple[str, ...]
    """Beginnings of the names of those of them that are gigabytes of libraries."""
    label: re.Pattern[str]
    """Local version of a build for it (``cu130``); groups hold the numbers of the release."""

    def release_of(self, local: str) -> str:
        """Return the release (``13.0``) that a local version names; empty if it is of another accelerator."""
        match = self.label.fullmatch(local)
        return ".".join(match.groups()) if match else ""


CUDA = Accelerator(
    name="cuda",
    vendor="nvidia",
    apptainer_flag="--nv",
    distributions=("nvidia-", "cuda-"),
    libraries=("nvidia-cu", "cuda-"),
    label=re.compile(r"cu([0-9]{1,2})([0-9])"),
)
ROCM = Accelerator(
    name="rocm",
    vendor="amd",
    apptainer_flag="--rocm",
    distributions=("rocm-",),
    libraries=(),
    label=re.compile(r"rocm([0-9.]+)"),
)
ACCELERATORS = {accelerator.name: accelerator for accelerator in (CUDA, ROCM)}
"""Name in specs → accelerator."""
BY_VENDOR = {accelerator.vendor: accelerator for accelerator in ACCELERATORS.values()}
"""Name in site files → accelerator."""
NAMES = ("cpu", *ACCELERATORS)
"""Values of `accelerator` in a spec, without releases."""
ANY = "any"
"""The variant of a recipe that serves every accelerator."""
KNOWN_VARIANT = re.compile(rf"{ANY}|cpu|({'|'.join(ACCELERATORS)})(-[0-9]+(\.[0-9]+)*)?")
"""Names of variants: an accelerator, and the release of its software."""
BUILD_LABEL = re.compile("|".join([*(row.label.pattern for row in ACCELERATORS.values()), "cpu", "xpu"]))
"""Local versions of PyTorch's builds; ``xpu`` is for Intel's GPUs, for which there are no variants."""
# NVIDIA's own builds of PyTorch have `nv24.07` in their versions.
_GPU_LABEL = re.compile(r"(?:^|\.)(?:cu|rocm|nv|xpu)[0-9.]*")


def owned_by_vendor(distribution: str, accelerator: str) -> bool:
    """Return whether the vendor of an accelerator (``cuda``, ``cuda-13.0``) makes a distribution."""
    row = ACCELERATORS.get(accelerator.partition("-")[0])
    return row is not None and distribution.startswith(row.distributions)


def is_gpu_build(local: str) -> bool:
    """Return whether a local version is that of a build for GPUs."""
    return _GPU_LABEL.search(local) is not None
