"""Which kind of host this is: the facts that decide whether a proof still holds.

Equal nodes of a cluster have equal fingerprints; another driver, kernel or
fabric firmware makes another one.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.system import apptainer as runtime
from envbuild.system import host
from envbuild.system.apptainer import Apptainer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFingerprint:
    """The facts of a host that matter, and their digest.

    Attributes
    ----------
    facts : dict of str to str
        Name → value; a fact that the host lacks is absent. No host name, no
        serial number, no address.
    """

    facts: dict[str, str]

    @property
    def digest(self) -> str:
        """``sha256:…`` over the facts as canonical JSON."""
        text = json.dumps(self.facts, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def with_fact(self, name: str, value: str) -> HostFingerprint:
        """Return the fingerprint of a host that is used in a way of its own (with its MPI, say)."""
        return HostFingerprint(facts=dict(sorted({**self.facts, name: value}.items())))


def fingerprint(apptainer: Apptainer | None = None, *, root: Path = Path("/")) -> HostFingerprint:
    """Return this host's fingerprint.

    Parameters
    ----------
    apptainer : Apptainer, optional
        The one in use; the machine's own, if it has one, when absent.
    root : Path
        Where /proc, /sys and /dev are looked for.
    """
    facts = {
        "architecture": host.architecture(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "apptainer": _apptainer_version(apptainer),
        "cpu": _cpu(root),
        "nvidia": _found(root / "proc/driver/nvidia/version", r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s"),
        "amdgpu": _text(root / "sys/module/amdgpu/version"),
        "cxi-driver": _text(root / "sys/module/cxi_core/version"),
        **dict(_fabric(root)),
    }
    return HostFingerprint(facts={name: fact for name, fact in sorted(facts.items()) if fact})


def _apptainer_version(named: Apptainer | None) -> str:
    try:
        return (named or runtime.find()).version
    except MachineError:
        return ""


def _cpu(root: Path) -> str:
    text = _text(root / "proc/cpuinfo", limit=64 * 1024)
    for pattern in (r"^model name\s*:\s*(.+)$", r"^CPU part\s*:\s*(.+)$", r"^cpu\s*:\s*(.+)$"):
        if found := re.search(pattern, text, re.MULTILINE):
            return found[1].strip()
    return ""


def _fabric(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each fabric device with its kind and firmware; addresses and GUIDs are left out."""
    for kind, details in (
        ("infiniband", ("hca_type", "fw_ver")),
        ("cxi", ("device/device", "device/fw_version")),
    ):
        directory = root / "sys/class" / kind
        try:
            devices = sorted(path.name for path in directory.iterdir())
        except OSError:
            continue
        for device in devices:
            facts = (_text(directory / device / detail) for detail in details)
            yield f"{kind}.{device}", " ".join(fact for fact in facts if fact) or "present"


def _found(path: Path, pattern: str) -> str:
    found = re.search(pattern, _text(path))
    return found[1] if found else ""


def _text(path: Path, *, limit: int = 4096) -> str:
    """Return the start of a small file of the kernel; empty where there is none."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""
