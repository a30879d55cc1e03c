"""The flags of Apptainer for the GPUs of the machines on which ranks start."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.jobs.envbuild_gpus import DEVICES
from envbuild.spec.accelerators import ACCELERATORS, BY_VENDOR
from envbuild.spec.site import Site
from envbuild.system.apptainer import Apptainer
from envbuild.system.files import list_directory, read_input

# Vendor → Apptainer's flag; the module's launcher has a list of its own (activate/launcher.sh).
GPU_FLAGS = {vendor: accelerator.apptainer_flag for vendor, accelerator in BY_VENDOR.items()}
CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
_CDI_BYTES = 1 << 20


def gpu_flags(
    apptainer: Apptainer, accelerator_name: str, site: Site | None, *, elsewhere: bool
) -> tuple[str, ...]:
    """Return Apptainer's flags for the GPUs of the machines that ranks start on.

    `elsewhere`: they may start on other machines than this one. There the site file decides, or else what the
    image is for, its `accelerator_name`. A flag for GPUs that a machine lacks does no harm.
    """
    if elsewhere:
        accelerator = ACCELERATORS.get(accelerator_name)
        vendor = accelerator.vendor if accelerator is not None else ""
        if site is not None and site.gpus is not None:
            vendor = site.gpus.vendor
        return (GPU_FLAGS[vendor],) if vendor in GPU_FLAGS else ()
    vendors = [vendor for vendor, device in DEVICES.items() if Path(device).exists()]
    return tuple(word for vendor in vendors for word in _flags_here(vendor, apptainer))


def _flags_here(vendor: str, apptainer: Apptainer) -> tuple[str, ...]:
    """Return the flags for a vendor's GPUs of this machine: by CDI, or else those that search for libraries.

    The launcher of modules does the same (activate/launcher.sh).
    """
    kind = f"{vendor}.com/gpu"
    if apptainer.knows_cdi and kind in _cdi_kinds():
        return ("--device", f"{kind}=all")
    return (GPU_FLAGS[vendor],)


def _cdi_kinds() -> set[str]:
    """Return the kinds of devices that the CDI specifications of this machine name (``nvidia.com/gpu``)."""
    kinds: set[str] = set()
    for directory in CDI_DIRECTORIES:
        for name in list_directory(directory):
            with contextlib.suppress(EnvbuildError):
                text = read_input(directory / name, limit_bytes=_CDI_BYTES).decode(errors="replace")
                # In YAML or JSON.
                kinds.update(re.findall(r"""kind["']?\s*:\s*["']?([a-z.]+/[a-z]+)""", text))
    return kinds
