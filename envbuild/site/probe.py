"""What can be told of this machine, as a draft of its site file, and what cannot, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuild.site.libraries import VERSION, HostMpi, Libraries
from envbuild.spec.site import (
    Site,
    SiteFabric,
    SiteGpus,
    SiteMpi,
    SiteRuntime,
    SiteScheduler,
)
from envbuild.system.apptainer import configuration
from envbuild.system.survey import Survey

_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAY = ("0x03", "0x12")  # PCI classes: displays, and accelerators without one
# Fabric → the providers of libfabric that drive it, the preferred first.
_PROVIDERS = {
    "slingshot-11": ("cxi",),
    "efa": ("efa",),
    "omni-path": ("opx", "psm2"),
    "infiniband": ("verbs",),
    "roce": ("verbs",),
}
_FABRIC_LIBRARIES = ("libfabric.so.1", "libcxi.so.1", "libucp.so.0", "libpsm2.so.2", "libefa.so.1")


@dataclass(slots=True)
class Probed:
    """What was seen of a machine."""

    site: Site
    """What can be told."""
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """Key of the site file → what people should know of it."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Key → why it cannot be told."""


def probe(machine: Survey, *, name: str, mpi: Sequence[str] = ()) -> Probed:
    """Return what can be told of a machine.

    Parameters
    ----------
    name : str
        The site's.
    mpi : sequence of str
        Directories where an MPI is installed, looked at before all others.
    """
    seen = _Seen(machine, mpi)
    values = {
        "architecture": machine.architecture if machine.architecture in ("amd64", "arm64") else None,
        "glibc": seen.libraries.newest("libc.so.6", r"GLIBC_(2\.[0-9]+)"),
        "libstdcxx": seen.libraries.newest("libstdc++.so.6", r"GLIBCXX_([0-9]+(?:\.[0-9]+)*)"),
        "gpus": seen.gpus(),
        "scheduler": seen.scheduler(),
        "mpi": seen.mpi(),
        "fabric": seen.fabric(),
        "runtimes": seen.runtimes(),
        "modules": seen.modules(),
    }
    for key, library in (("glibc", "libc.so.6"), ("libstdcxx", "libstdc++.so.6")):
        if values[key] is None:
            seen.unknown[key] = f"the loader's cache (`ldconfig -p`) has no {library}"
    known = {key: value for key, value in values.items() if value is not None}
    return Probed(site=Site(name=name, **known), remarks=seen.remarks, unknown=seen.unknown)


class _Seen:
    def __init__(self, machine: Survey, mpi: Sequence[str]) -> None:
        self.machine = machine
        self.libraries = Libraries(machine)
        self.remarks: dict[str, list[str]] = {}
        self.unknown: dict[str, str] = {}
        self._named = mpi

    def remark(self, key: str, text: str) -> None:
        self.remarks.setdefault(key, []).append(text)

    def says(self, program: str, *arguments: str) -> str:
        return self.machine.says(self.machine.program(program), *arguments)

    def gpus(self) -> SiteGpus | None:
        self.remark("gpus", "Of this machine: a login node may have others than the nodes that compute.")
        nvidia = re.search(
            r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", self.machine.text("/proc/driver/nvidia/version")
        )
        if nvidia:
            return self._nvidia(nvidia[1])
        nodes = self._amd_targets()
        if nodes:
            driver = re.match(VERSION, self.machine.text("/sys/module/amdgpu/version"))
            if driver is None:
                self.unknown["gpus.driver"] = "the kernel's own amdgpu tells no version"
            return SiteGpus(
                vendor="amd",
                count=len(nodes),
                architectures=tuple(sorted(set(nodes))),
                driver=driver[0] if driver else None,
            )
        return self._without_driver()

    def _nvidia(self, driver: str) -> SiteGpus:
        count = len(self.machine.names("/proc/driver/nvidia/gpus")) or None
        said = self.says("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
        found = {f"sm_{a}{b}" for a, b in re.findall(r"^(\d+)\.(\d+)$", said, re.MULTILINE)}
        if not found:
            self.unknown["gpus.architectures"] = "nvidia-smi does not tell them"
        if count is None:
            self.unknown["gpus.count"] = "the driver lists no GPU"
        return SiteGpus(vendor="nvidia", count=count, architectures=tuple(sorted(found)), driver=driver)

    def _amd_targets(self) -> list[str]:
        """Return the target of each GPU that the kernel's compute driver lists: ``gfx90a``."""
        directory = "/sys/class/kfd/kfd/topology/nodes"
        targets = []
        for node in self.machine.names(directory):
            text = self.machine.text(f"{directory}/{node}/properties")
            said = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
            number = int(said[1]) if said else 0
            if number:
                major, minor, step = number // 10000, number // 100 % 100, number % 100
                targets.append(f"gfx{major}{minor:x}{step:x}")
        return targets

    def _without_driver(self) -> SiteGpus | None:
        directory = "/sys/bus/pci/devices"
        devices = self.machine.names(directory)
        there = {
            self.machine.text(f"{directory}/{one}/vendor")
            for one in devices
            if self.machine.text(f"{directory}/{one}/class").startswith(_DISPLAY)
        }
        if not devices:
            self.unknown["gpus"] = "no driver of one is loaded, and the kernel lists no PCI devices"
            return None
        if there & {_NVIDIA, _AMD}:
            self.unknown["gpus.driver"] = "there is a GPU, and its driver is not loaded"
            return SiteGpus(vendor="nvidia" if _NVIDIA in there else "amd")
        return SiteGpus(vendor="none", count=0)

    def _hangs(self) -> str:
        """Return that srun does not answer; empty where it did."""
        program = self.machine.program("srun")
        seconds = f"{self.machine.timeout_s:g} s"
        return f"`{program}` did not answer within {seconds}" if program in self.machine.hung else ""

    def scheduler(self) -> SiteScheduler | None:
        version = re.search(rf"slurm(?:-wlm)? ({VERSION})", self.says("srun", "--version"))
        if version is None:
            # Where Slurm has no configuration, not even this is answered.
            self.unknown["scheduler"] = self._hangs() or "there is no srun on PATH, or it finds no cluster"
            return None
        listed = self.says("srun", "--mpi=list")
        if not listed:
            # The programs alone make no cluster: srun would start nothing.
            fails = "there is an srun, and it finds no cluster (`srun --mpi=list` fails)"
            self.unknown["scheduler"] = self._hangs() or fails
            return None
        types = mpi_types(listed)
        if not types:
            self.unknown["scheduler.mpi_types"] = "`srun --mpi=list` names none"
        default = re.search(
            r"^MpiDefault\s*=\s*([a-z0-9_]+)", self.says("scontrol", "show", "config"), re.MULTILINE
        )
        if default is None:
            self.unknown["scheduler.default_mpi_type"] = "`scontrol show config` does not tell MpiDefault"
        return SiteScheduler(
            name="slurm",
            version=version[1],
            mpi_types=types,
            default_mpi_type=default[1] if default else None,
        )

    def mpi(self) -> SiteMpi | None:
        found = self.libraries.mpis(self._named)
        if not found:
            self.unknown["mpi"] = (
                "none on PATH, in the loader's cache, MPI_HOME or I_MPI_ROOT; name one with --mpi DIR"
            )
            return None
        chosen, *others = found
        for text in chosen.remarks:
            self.remark("mpi", text)
        for other in others:
            self.remark("mpi", f"Also here: {_sentence(other)}.")
        if chosen.version is None:
            self.unknown["mpi.version"] = "no program of it tells its version"
        companions, environment = self._own_ways(chosen)
        return SiteMpi(
            implementation=chosen.implementation,
            version=chosen.version,
            base_version=chosen.version if chosen.implementation in ("mpich", "openmpi") else None,
            abis=chosen.abis,
            libraries=self._libraries(chosen),
            search=chosen.search,
            companions=companions,
            launcher=chosen.launcher,
            environment=environment,
        )

    def _own_ways(self, mpi: HostMpi) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return what an implementation opens by itself, and what it wants in the environment."""
        names = self.machine.names(f"{mpi.prefix}/lib") if mpi.prefix else ()
        if mpi.implementation == "intel-mpi" and mpi.prefix:
            places = [f"{mpi.prefix}/{below}" for below in ("lib", "opt")]
            environment = {"I_MPI_ROOT": mpi.prefix}
            if any(name.endswith("-fi.so") for name in names):
                environment["FI_PROVIDER_PATH"] = f"{mpi.prefix}/lib"
            return tuple(place for place in places if self.machine.exists(place)), environment
        if mpi.implementation == "openmpi" and mpi.prefix:
            # Its plug-ins and texts; a copy or a wheel is not where it was built for.
            own = {"PMIX_PREFIX": mpi.prefix} if "libpmix.so.2" in names else {}
            return (mpi.prefix,), {"OPAL_PREFIX": mpi.prefix, **own}
        return (), {}

    def _libraries(self, mpi: HostMpi) -> tuple[str, ...]:
        """Return what programs ask for; Intel's opens libfabric by its name, so that no need tells it."""
        fabric = f"{mpi.prefix}/lib/libfabric.so.1"
        opened = mpi.implementation == "intel-mpi" and mpi.prefix and self.machine.exists(fabric)
        return (*mpi.libraries, *((fabric,) if opened else ()))

    def fabric(self) -> SiteFabric | None:
        version = re.search(rf"libfabric: ({VERSION})", self.says("fi_info", "--version"))
        providers = re.findall(r"^(\S+):$", self.says("fi_info", "-l"), re.MULTILINE)
        ucx = re.search(rf"(?:Library version: |UCT version=)({VERSION})", self.says("ucx_info", "-v"))
        known = f"libfabric {version[1]} ({', '.join(providers)})" if version else self._why("fi_info")
        known += f", UCX {ucx[1]}" if ucx else f", {self._why('ucx_info')}"
        self.remark("fabric", f"Here: {known}.")
        name, devices = self._devices()
        if name is None:
            self.unknown["fabric"] = "the kernel lists no device of a fabric that is known"
            return None
        provider = next((one for one in _PROVIDERS[name] if one in providers), None)
        if provider is None and ucx and name in ("infiniband", "roce"):
            provider = "ucx"
        if provider is None:
            self.unknown["fabric.provider"] = "fi_info does not list one that drives it"
        cached = self.libraries.cached()
        libraries = tuple(cached[one] for one in _FABRIC_LIBRARIES if one in cached)
        return SiteFabric(
            name=name,
            provider=provider,
            libfabric=version[1] if version else None,
            libraries=libraries,
            devices=devices,
        )

    def _why(self, program: str) -> str:
        path = self.machine.program(program)
        return f"no {program} on PATH" if path is None else f"{path}, which fails or tells no version"

    def _devices(self) -> tuple[str | None, tuple[str, ...]]:
        """Return which fabric the kernel has devices of, and their files."""
        if self.machine.names("/sys/class/cxi"):
            return "slingshot-11", self._files("/dev", r"cxi[0-9]+")
        cards = self.machine.names("/sys/class/infiniband")
        files = self._files("/dev/infiniband", r"uverbs[0-9]+|rdma_cm")
        if any(card.startswith("hfi1") for card in cards):
            return "omni-path", self._files("/dev", r"hfi1_[0-9]+")
        if any(card.startswith("efa") or "rdmap" in card for card in cards):
            return "efa", files
        layers = [self.machine.text(f"/sys/class/infiniband/{card}/ports/1/link_layer") for card in cards]
        if "InfiniBand" in layers:
            return "infiniband", files
        return ("roce", files) if "Ethernet" in layers else (None, ())

    def _files(self, directory: str, pattern: str) -> tuple[str, ...]:
        names = self.machine.names(directory)
        return tuple(f"{directory}/{name}" for name in names if re.fullmatch(pattern, name))

    def runtimes(self) -> tuple[SiteRuntime, ...]:
        version = re.search(rf"apptainer version ({VERSION})", self.says("apptainer", "--version"))
        if version is None:
            self.unknown["runtimes"] = "there is no apptainer on PATH"
            return ()
        conf = configuration(self.says("apptainer", "buildcfg"), self.machine)
        namespaces = self._user_namespaces()
        if namespaces is None:
            self.unknown["runtimes.user_namespaces"] = "the kernel does not tell"
        if conf.setuid is None:
            self.unknown["runtimes.setuid"] = "apptainer's settings cannot be read"
        return (
            SiteRuntime(
                name="apptainer",
                version=version[1],
                user_namespaces=namespaces,
                setuid=conf.setuid,
            ),
        )

    def _user_namespaces(self) -> bool | None:
        most = self.machine.text("/proc/sys/user/max_user_namespaces")
        if not most.isdigit():
            return None
        denied = (
            self.machine.text("/proc/sys/kernel/unprivileged_userns_clone") == "0"
            or self.machine.text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
        )
        return int(most) > 0 and not denied

    def modules(self) -> Any:  # noqa: ANN401  # one of the two words that `Site.modules` takes
        if self.machine.variables.get("LMOD_CMD") or self.machine.exists("/usr/share/lmod/lmod/libexec/lmod"):
            return "lmod"
        if self.machine.variables.get("MODULESHOME"):
            return "environment-modules"
        self.unknown["modules"] = "neither LMOD_CMD nor MODULESHOME is set"
        return None


def mpi_types(listed: str) -> tuple[str, ...]:
    """Return what ``srun --mpi=list`` names, sorted.

    Older releases write ``srun: none`` on standard error, newer ones a list
    with the versions of pmix below it.
    """
    found: set[str] = set()
    for line in listed.splitlines():
        text = line.strip().removeprefix("srun:").strip()
        if text.lower().startswith("specific pmix plugin versions available:"):
            text = text.partition(":")[2]
            found.update(re.findall(r"pmix_v[0-9]+", text))
        elif re.fullmatch(r"[a-z][a-z0-9_/]*", text):
            found.update(text.split("/"))
    return tuple(sorted(found))


def _sentence(mpi: HostMpi) -> str:
    version = f" {mpi.version}" if mpi.version else ""
    return f"{mpi.implementation}{version} ({', '.join(mpi.abis)}), {mpi.libraries[0]}"
