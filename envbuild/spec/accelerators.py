"""Accelerators: one row for each family of GPUs, with its names in specs, machines and packages."""

from __future__ import annotations

import re
from collections.abc import Collection
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
    origin: str = ""
    """Beginning of the logical origins of its distributions, before a release (``amd-rocm10.0``); empty if
    the main index has them."""
    source_archives: tuple[str, ...] = ()
    """Those of its distributions that have no wheel."""
    device_extra: str = ""
    """Extra of a framework's distribution that adds the code for one GPU, to be formatted with its
    architecture; empty if wheels have the code for all."""
    all_devices_extra: str = ""
    """The extra that adds the code for all GPUs."""

    def release_of(self, local: str) -> str:
        """Return the release (``13.0``) that a local version names; empty if it is of another accelerator."""
        match = self.label.fullmatch(local)
        return ".".join(match.groups()) if match else ""

    def device_extras(self, architectures: Collection[str]) -> tuple[str, ...]:
        """Return the extras for GPUs (``device-gfx90a``), sorted; for unknown ones that for all."""
        extras = tuple(self.device_extra.format(architecture) for architecture in sorted(architectures))
        return extras or (self.all_devices_extra,)


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
    distributions=("rocm", "amd-torch"),
    libraries=("rocm-sdk-",),
    label=re.compile(r"rocm([0-9.]+)"),
    # From ROCm 7.14 on; source: ROCm/TheRock, RELEASES.md and docs/packaging/python_packaging.md.
    origin="amd-rocm",
    source_archives=("rocm",),
    device_extra="device-{}",
    all_devices_extra="device-all",
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


def accelerator_of(variant: str) -> Accelerator | None:
    """Return the accelerator of a variant (``rocm-7.2``) or a spec's value; None for CPUs."""
    return ACCELERATORS.get(re.split("[-@]", variant)[0])


def owned_by_vendor(distribution: str, accelerator: str) -> bool:
    """Return whether the vendor of an accelerator (``cuda``, ``cuda-13.0``) makes a distribution."""
    row = accelerator_of(accelerator)
    return row is not None and distribution.startswith(row.distributions)


def is_gpu_build(local: str) -> bool:
    """Return whether a local version is that of a build for GPUs."""
    return _GPU_LABEL.search(local) is not None
