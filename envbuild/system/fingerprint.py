"""The fingerprint of a host: facts that decide whether a test verdict still holds.

Equal nodes of a cluster have equal fingerprints; another driver, kernel or fabric firmware changes it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import MachineError
from envbuild.system import apptainer as runtime
from envbuild.system import host
from envbuild.system.apptainer import Apptainer
from envbuild.system.survey import Survey

# Where distributions and EFA's installer put it.
_LIBFABRIC = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/opt/amazon/efa/lib64",
)
_LIBFABRIC_FILE = re.compile(r"libfabric\.so\.([0-9]+\.[0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFingerprint:
    """The facts of a host that affect tests, and their digest."""

    facts: dict[str, str]
    """Name → value, without host name, serial number or address; facts that the host lacks are absent."""

    @property
    def digest(self) -> str:
        """``sha256:…`` over the facts as canonical JSON."""
        return sha256_of(canonical_json(self.facts))

    def with_fact(self, name: str, value: str) -> HostFingerprint:
        """Return the fingerprint with a further fact, such as the use of the host's MPI."""
        return self.with_facts({name: value})

    def with_facts(self, facts: Mapping[str, str]) -> HostFingerprint:
        """Return the fingerprint with further facts, such as the identities of the host's libraries."""
        return HostFingerprint(facts=dict(sorted({**self.facts, **facts}.items())))


def fingerprint(apptainer: Apptainer | None = None, *, root: Path = Path("/")) -> HostFingerprint:
    """Return this host's fingerprint, with the `apptainer` in use, else the machine's, if any.

    `root` is the parent of /proc, /sys and /dev.
    """
    survey = Survey(root=root)
    facts = {
        "architecture": host.architecture(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "apptainer": _apptainer_version(apptainer),
        "emulator": apptainer.emulator_label if apptainer is not None else "",
        "cpu": _cpu(survey),
        "nvidia": survey.nvidia_driver(),
        "nvidia-gpus": _nvidia_gpus(survey),
        "amdgpu": survey.text("/sys/module/amdgpu/version"),
        "cxi-driver": survey.text("/sys/module/cxi_core/version"),
        "libfabric": _libfabric(survey),
        **dict(_fabric(survey)),
    }
    return HostFingerprint(facts={name: fact for name, fact in sorted(facts.items()) if fact})


def _apptainer_version(apptainer: Apptainer | None) -> str:
    try:
        return (apptainer or runtime.find()).version
    except MachineError:
        return ""


def _cpu(survey: Survey) -> str:
    text = survey.text("/proc/cpuinfo")
    for pattern in (r"^model name\s*:\s*(.+)$", r"^CPU part\s*:\s*(.+)$", r"^cpu\s*:\s*(.+)$"):
        if match := re.search(pattern, text, re.MULTILINE):
            return match[1].strip()
    return ""


def _nvidia_gpus(survey: Survey) -> str:
    """Return the models of NVIDIA's GPUs, each once."""
    directory = "/proc/driver/nvidia/gpus"
    texts = [survey.text(f"{directory}/{name}/information") for name in survey.names(directory)]
    models = {
        match[1].strip() for text in texts if (match := re.search(r"^Model:\s*(.+)$", text, re.MULTILINE))
    }
    return ", ".join(sorted(models))


def _libfabric(survey: Survey) -> str:
    """Return the versions of the host's libfabric, as the files of the library have them in their names."""
    directories = [directory for directory in _LIBFABRIC if survey.exists(directory)]
    directories += [f"/opt/cray/libfabric/{name}/lib64" for name in survey.names("/opt/cray/libfabric")]
    files = (name for directory in directories for name in survey.names(directory))
    return ", ".join(sorted({match[1] for name in files if (match := _LIBFABRIC_FILE.fullmatch(name))}))


def _fabric(survey: Survey) -> Iterator[tuple[str, str]]:
    """Yield each fabric device with its kind and firmware; addresses and GUIDs are left out."""
    for kind, details in (
        ("infiniband", ("hca_type", "fw_ver")),
        ("cxi", ("device/device", "device/fw_version")),
    ):
        directory = f"/sys/class/{kind}"
        for device in survey.names(directory):
            facts = (survey.text(f"{directory}/{device}/{detail}") for detail in details)
            yield f"{kind}.{device}", " ".join(fact for fact in facts if fact) or "present"
