"""Draft a site file for this machine: the values that can be read, and why the others are unknown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import yaml

from envbuild.jobs.envbuild_libraries import FABRIC_SONAMES
from envbuild.site.from_modules import prefixes, supply_name, supply_of
from envbuild.site.libraries import VERSION, HostTree, find_mpis
from envbuild.spec.site import (
    Rate,
    Site,
    SiteFabric,
    SiteGpus,
    SiteMpi,
    SiteRuntime,
    SiteScheduler,
    SiteSupply,
)
from envbuild.system.apptainer import configuration
from envbuild.system.modules import LoadedModule
from envbuild.system.survey import Survey

_CACHED = re.compile(r"^\s*(\S+) \((.*)\) => (/.+)$", re.MULTILINE)
_LOADER_WORDS = {"amd64": "x86-64", "arm64": "AArch64"}
_NVIDIA, _AMD = "0x10de", "0x1002"
# Set in jobs of Slurm, PBS, Flux and LSF.
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID")
_DISPLAY = ("0x03", "0x12")  # PCI classes: displays, and accelerators without one
# Fabric → the providers of libfabric that drive it, the preferred first.
_PROVIDERS = {
    "slingshot-11": ("cxi",),
    "efa": ("efa",),
    "omni-path": ("opx", "psm2"),
    "infiniband": ("verbs",),
    "roce": ("verbs",),
}
# Key → why its value is unknown, if it is.
_REASONS = {
    "glibc": "the loader's cache (`ldconfig -p`) has no libc.so.6",
    "libstdcxx": "the loader's cache (`ldconfig -p`) has no libstdc++.so.6",
    "gpus": "none is seen here, and compute nodes may have some: `site probe --partition NAME`",
    "gpus.count": "no driver lists them",
    "gpus.architectures": "nvidia-smi does not report them",
    "kernel": "`/proc/sys/kernel/osrelease` cannot be read",
    "memlock": "only a job has its limit: `site probe --partition NAME`",
    "shm": "there is no `/dev/shm` in `/proc/mounts`",
    "gpus.driver": "it is not loaded, or the kernel's own amdgpu, which has no version",
    "scheduler": "there is no srun on PATH, or it finds no cluster",
    "scheduler.mpi_types": "`srun --mpi=list` names none",
    "scheduler.default_mpi_type": "`scontrol show config` names no MpiDefault that srun has",
    "scheduler.pmix": "only a task of `srun --mpi=pmix` has it: `site probe --partition NAME`",
    "scheduler.pmix_security": "only a task of `srun --mpi=pmix` has it: `site probe --partition NAME`",
    "mpi": "none on PATH, in the loader's cache, MPI_HOME or I_MPI_ROOT; add --mpi DIR or --module NAME",
    "mpi.version": "no program of it reports one, or several MPIs do: check `implementation`, too",
    "fabric": "the kernel lists no device of a known fabric",
    "fabric.provider": "fi_info lists no provider that drives it",
    "runtimes": "there is no apptainer and no singularity-ce on PATH",
    "modules": "neither LMOD_CMD nor MODULESHOME is set",
}

_SUPPLY_WHY = (
    "give it the name of the recipe of the kind `site` that asks for it, and add the commands and Python"
    " packages that images use."
)
_WIDTH = 100
_HEAD = """\
# Drafted by `envbuild site probe`. Check every value: rules rely on them. A key that is left out is
# unknown, which is never reported as a pass. docs/howto/sites.md explains the keys.
"""
_TAIL = """
# Where the facts are published, and when they were read.
# sources: []
# seen: YYYY-MM-DD
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteDraft:
    """A draft of the site file of a machine."""

    site: Site
    mpis: tuple[SiteMpi, ...]
    """All MPIs of the machine; the first is the site's."""
    remarks: dict[str, list[str]]
    """Key of the site file → sentences for comments."""
    unknown: dict[str, str]
    """Key → why its value is unknown."""
    caveats: dict[str, list[str]] = field(default_factory=dict)
    """Key → sentences that hold because the draft is of one node."""

    def text(self) -> str:
        """Return the text of a site file; the same machine gives the same text."""
        data = self.site.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        text = [_HEAD]
        for section in Site.model_fields:
            sentences = (*self.caveats.get(section, ()), *self.remarks.get(section, ()))
            lines = [_comment(sentence) for sentence in sentences]
            if section in data:
                part = {section: data[section]}
                lines.append(yaml.safe_dump(part, sort_keys=False, allow_unicode=True, width=_WIDTH))
            for key, reason in self.unknown.items():
                if key.partition(".")[0] == section:
                    lines.append(_comment(f"{key}: unknown: {reason}"))
            text += ["\n", *lines] if lines else []
        return "".join([*text, _TAIL])


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def probe(
    machine: Survey,
    *,
    name: str,
    mpi: Sequence[str] = (),
    modules: Sequence[LoadedModule] = (),
    tree: HostTree | None = None,
) -> SiteDraft:
    """Return the draft of a machine's site.

    An MPI in one of the directories `mpi`, or else of a module, precedes all others; other modules become
    software that the site supplies. `tree` avoids reading the machine's libraries again.
    """
    if modules:
        machine = replace(machine, variables=modules[-1].variables)
    return _Detector(machine, tree or HostTree(machine.root)).draft(name, mpi, modules)


def values_of(site: Site) -> dict[str, Any]:
    """Return the values of a site by dotted key: ``runtimes.apptainer.version``; binds are their sources."""
    data = site.model_dump(exclude_defaults=True)
    if site.binds:
        data["binds"] = tuple(bind.source for bind in site.binds)
    for runtime in data.pop("runtimes", ()):
        name = runtime.pop("name")
        data |= {f"runtimes.{name}": name, **{f"runtimes.{name}.{key}": runtime[key] for key in runtime}}
    for name, supply in data.pop("supplies", {}).items():
        data |= {f"supplies.{name}.{key}": supply[key] for key in supply}
    values: dict[str, Any] = {}
    for section, value in data.items():
        is_section = isinstance(value, dict)
        values |= {f"{section}.{key}": value[key] for key in value} if is_section else {section: value}
    return values


def shown(value: Any) -> str:  # noqa: ANN401  # a value of a site
    """Return a value of `values_of` as text for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


class _Detector:
    """Detects the sections of a site file, one after the other."""

    def __init__(self, machine: Survey, tree: HostTree) -> None:
        self.machine, self.tree = machine, tree
        self.remarks: dict[str, list[str]] = {}
        self.caveats: dict[str, list[str]] = {}
        self.reasons = dict(_REASONS)
        word = _LOADER_WORDS.get(machine.architecture, "")
        self.cached: dict[str, str] = {}
        """The loader's cache for this architecture: soname → path."""
        for soname, kind, path in _CACHED.findall(self.output_of("ldconfig", "-p")):
            if word in kind:
                self.cached.setdefault(soname, path)

    def draft(self, name: str, named_mpis: Sequence[str], modules: Sequence[LoadedModule]) -> SiteDraft:
        of_modules = [prefix for module in modules for prefix in prefixes(module)]
        mpis = self.mpis([*named_mpis, *of_modules])
        values = {
            "architecture": self.machine.architecture if self.machine.architecture in _LOADER_WORDS else None,
            "glibc": self.newest("libc.so.6", r"GLIBC_(2\.[0-9]+)"),
            "libstdcxx": self.newest("libstdc++.so.6", r"GLIBCXX_([0-9]+(?:\.[0-9]+)*)"),
            "kernel": _version_in(self.machine.text("/proc/sys/kernel/osrelease")),
            # Absent from a machine that cannot be read, too.
            "fuse": self.machine.exists("/dev/fuse") if self.machine.names("/dev") else None,
            "memlock": self.memlock(),
            "shm": self.shm(),
            "gpus": self.gpus(),
            "scheduler": self.scheduler(),
            "mpi": next(iter(mpis), None),
            "fabric": self.fabric(),
            "supplies": self.supplies(modules, mpis[:1]),
            "runtimes": self.runtimes(),
            "modules": self.modules(),
        }
        present = {key: value for key, value in values.items() if value is not None}
        site = Site.model_validate({"name": name, **present})
        unknown = dict(self.unknown(values_of(site)))
        return SiteDraft(site=site, mpis=mpis, remarks=self.remarks, unknown=unknown, caveats=self.caveats)

    def unknown(self, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield sections without any value, and keys without one in other sections, each with the reason."""
        sections = {key.partition(".")[0] for key in values}
        for key, reason in self.reasons.items():
            section, _, name = key.partition(".")
            has_no_gpus = section == "gpus" and values.get("gpus.vendor") == "none"
            if key not in values and bool(name) == (section in sections) and not has_no_gpus:
                yield key, reason

    def remark(self, key: str, text: str) -> None:
        self.remarks.setdefault(key, []).append(text)

    def output_of(self, program: str, *arguments: str) -> str:
        return self.machine.output_of(self.machine.program(program), *arguments)

    def newest(self, soname: str, pattern: str) -> str | None:
        """Return the newest version that a library of the loader's cache defines (``2.36``)."""
        library = self.tree.lookup(self.cached[soname]) if soname in self.cached else None
        defined = library.versions_defined if library else ()
        numbers = (match[1] for version in defined if (match := re.fullmatch(pattern, version)))
        return max(numbers, key=lambda text: tuple(map(int, text.split("."))), default=None)

    def memlock(self) -> str | None:
        """Return how much memory a process of a job may lock; a login has limits of another kind."""
        if not any(self.machine.variables.get(name) for name in _JOBS):
            return None
        limits = self.machine.text("/proc/self/limits")
        match = re.search(r"^Max locked memory +(unlimited|[0-9]+) ", limits, re.MULTILINE)
        return match[1] if match else None

    def shm(self) -> int | None:
        """Return the size of ``/dev/shm``: without an option it is half of the memory (tmpfs(5))."""
        mounts = self.machine.text("/proc/mounts")
        match = re.search(r"^\S+ /dev/shm tmpfs (\S+)", mounts, re.MULTILINE)
        if match is None:
            return None
        size = re.search(r"(?:^|,)size=([0-9]+)([kmg]?)(?:,|$)", match[1])
        if size:
            return int(size[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[size[2]]
        memory = re.search(r"^MemTotal: +([0-9]+) kB$", self.machine.text("/proc/meminfo"), re.MULTILINE)
        return int(memory[1]) << 9 if memory else None

    def mpis(self, named: Sequence[str]) -> tuple[SiteMpi, ...]:
        mpis = find_mpis(self.machine, self.tree, self.cached, named)
        mpis = tuple(self.with_search(mpi) for mpi in mpis[:1]) + mpis[1:]
        loads = [self.tree.closure(path, mpi.search) for mpi in mpis[:1] for path in mpi.libraries]
        for gap in dict.fromkeys(gap for closure in loads if closure for gap in closure.missing):
            fix = "add its directory to `search`"
            self.remark("mpi", f"{gap.path} needs {gap.name}, which is missing: {fix}.")
        for other in mpis[1:]:
            label = f"{other.implementation} {other.version or ''}".strip()
            self.remark("mpi", f"Also here: {label} ({', '.join(other.abis)}), {other.libraries[0]}.")
        return mpis

    def with_search(self, mpi: SiteMpi) -> SiteMpi:
        """Return an MPI that also searches the directories of LD_LIBRARY_PATH that have what it lacks."""
        directories = self.machine.variables.get("LD_LIBRARY_PATH", "").split(":")
        left = [path for path in dict.fromkeys(directories) if path.startswith("/")]
        while True:
            loads = [self.tree.closure(path, mpi.search) for path in mpi.libraries]
            lacking = {gap.name for closure in loads if closure for gap in closure.missing}
            helping = next((path for path in left if lacking & {*self.machine.names(path)}), None)
            if helping is None:
                return mpi
            left.remove(helping)
            mpi = mpi.model_copy(update={"search": (*mpi.search, helping)})

    def supplies(
        self, modules: Sequence[LoadedModule], mpis: Sequence[SiteMpi]
    ) -> dict[str, SiteSupply] | None:
        """Return what modules supply beside the MPI; None if they supply nothing."""
        supplies: dict[str, SiteSupply] = {}
        libraries = [self.machine.real(path) for mpi in mpis for path in mpi.libraries]
        for module in modules:
            own = tuple(f"{self.machine.real(prefix)}/" for prefix in prefixes(module))
            if own and any(path.startswith(own) for path in libraries):
                self.remark("mpi", f"From the module {module.name}.")
                continue
            supply, name = supply_of(module, self.machine), supply_name(module)
            if name and supply != SiteSupply(version=supply.version):
                supplies[name] = supply
                self.remark("supplies", f"`{name}` is from the module {module.name}: {_SUPPLY_WHY}")
            else:
                self.remark("supplies", f"The module {module.name} names no libraries and no variables.")
        return supplies or None

    def gpus(self) -> SiteGpus | None:
        self.caveats["gpus"] = ["Detected here; compute nodes may have other GPUs."]
        if driver := self.machine.nvidia_driver():
            return self.nvidia(driver)
        targets = self.amd_targets()
        if not targets:
            return self.gpus_of_bus()
        version = re.match(VERSION, self.machine.text("/sys/module/amdgpu/version"))
        return SiteGpus(
            vendor="amd",
            count=len(targets),
            architectures=tuple(sorted(set(targets))),
            driver=version[0] if version else None,
            # `-1` leaves it to the GPU.
            xnack={"0": True, "1": False}.get(self.machine.text("/sys/module/amdgpu/parameters/noretry")),
        )

    def nvidia(self, driver: str) -> SiteGpus:
        count = len(self.machine.names("/proc/driver/nvidia/gpus")) or None
        output = self.output_of(
            "nvidia-smi", "--query-gpu=compute_cap,name,mig.mode.current", "--format=csv,noheader"
        )
        rows = re.findall(r"^(\d+)\.(\d+)(?:, (?:NVIDIA )?([^,]{1,99}), (.+))?$", output, re.MULTILINE)
        modes = {mode for *_, mode in rows} & {"Enabled", "Disabled"}
        manager = re.search(rf"version is\s*: ({VERSION})", self.output_of("nv-fabricmanager", "--version"))
        return SiteGpus(
            vendor="nvidia",
            count=count,
            architectures=tuple(sorted({f"sm_{major}{minor}" for major, minor, *_ in rows})),
            driver=driver,
            open_modules="Open Kernel Module" in self.machine.text("/proc/driver/nvidia/version"),
            fabric_manager=manager[1] if manager else None,
            names=tuple(sorted({name for *_, name, _ in rows if name})),
            mig=modes == {"Enabled"} if len(modes) == 1 else None,
        )

    def amd_targets(self) -> list[str]:
        """Return the target of each GPU that the kernel's compute driver lists (``gfx90a``)."""
        directory = "/sys/class/kfd/kfd/topology/nodes"
        targets = []
        for node in self.machine.names(directory):
            text = self.machine.text(f"{directory}/{node}/properties")
            match = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
            number = int(match[1]) if match else 0
            if number:
                major, minor, step = number // 10000, number // 100 % 100, number % 100
                targets.append(f"gfx{major}{minor:x}{step:x}")
        return targets

    def gpus_of_bus(self) -> SiteGpus | None:
        """Return the GPUs on the PCI bus, without a driver."""
        directory = "/sys/bus/pci/devices"
        devices = self.machine.names(directory)
        vendors = {
            self.machine.text(f"{directory}/{device}/vendor")
            for device in devices
            if self.machine.text(f"{directory}/{device}/class").startswith(_DISPLAY)
        }
        if not devices:
            return None
        if vendors & {_NVIDIA, _AMD}:
            return SiteGpus(vendor="nvidia" if _NVIDIA in vendors else "amd")
        # A login node often has none: only of a node of a job is that a fact.
        in_job = any(self.machine.variables.get(name) for name in _JOBS)
        return SiteGpus(vendor="none", count=0) if in_job else None

    def scheduler(self) -> SiteScheduler | None:
        version = re.search(rf"slurm(?:-wlm)? ({VERSION})", self.output_of("srun", "--version"))
        # The programs alone are not a cluster; without a configuration they do not even print a version.
        listed = self.output_of("srun", "--mpi=list") if version else ""
        if version is None or not listed:
            program = self.machine.program("srun")
            if program in self.machine.hung:
                timeout = f"{self.machine.timeout_s:g} s"
                self.reasons["scheduler"] = f"`{program}` did not answer within {timeout}"
            return None
        self.note_partitions()
        types = mpi_types(listed)
        config = self.output_of("scontrol", "show", "config")
        default = re.search(r"^MpiDefault\s*=\s*([a-z0-9_]+)", config, re.MULTILINE)
        # The server's own, which it puts into the environment of its tasks.
        pmix = re.match(VERSION, self.machine.variables.get("PMIX_VERSION", ""))
        return SiteScheduler(
            name="slurm",
            version=version[1],
            mpi_types=types,
            default_mpi_type=default[1] if default and default[1] in ("none", *types) else None,
            pmix=pmix[0] if pmix else None,
            # Slurm puts it into the environment of its tasks, too.
            pmix_security=tuple(
                re.findall(r"[a-z0-9_]+", self.machine.variables.get("PMIX_SECURITY_MODE", ""))
            ),
        )

    def note_partitions(self) -> None:
        """Name Slurm's partitions: the draft has the facts of one node."""
        queue = self.machine.variables.get("SLURM_JOB_PARTITION", "")
        names = sorted(
            set(re.findall(r"^(\S+)$", self.output_of("sinfo", "--noheader", "--format=%R"), re.MULTILINE))
        )
        if queue:
            self.caveats["partitions"] = [f"Drafted on a node of Slurm's partition `{queue}`."]
        if queue or len(names) > 1:
            listed = f"Slurm has the partitions {', '.join(names)}. " if names else ""
            fix = "`envbuild site probe --partition NAME`, on a login node, describes nodes that differ."
            self.caveats.setdefault("partitions", []).append(f"{listed}{fix}")

    def fabric(self) -> SiteFabric | None:
        version = re.search(rf"libfabric: ({VERSION})", self.output_of("fi_info", "--version"))
        providers = re.findall(r"^(\S+):$", self.output_of("fi_info", "-l"), re.MULTILINE)
        ucx = re.search(rf"(?:Library version: |UCT version=)({VERSION})", self.output_of("ucx_info", "-v"))
        libfabric = f"libfabric {version[1]} ({', '.join(providers)})" if version else self.absence("fi_info")
        self.remark("fabric", f"Here: {libfabric}, {f'UCX {ucx[1]}' if ucx else self.absence('ucx_info')}.")
        name, devices = self.fabric_devices()
        if name is None:
            return None
        provider = next((provider for provider in _PROVIDERS[name] if provider in providers), None)
        if provider is None and ucx and name in ("infiniband", "roce"):
            provider = "ucx"
        return SiteFabric(
            name=name,
            provider=provider,
            rate=self.fabric_rate(),
            libfabric=version[1] if version else None,
            efa_installer=_version_in(self.machine.text("/opt/amazon/efa_installed_packages")),
            ofed=_version_in(self.output_of("ofed_info", "-s")),
            libraries=tuple(self.cached[soname] for soname in FABRIC_SONAMES if soname in self.cached),
            devices=devices,
        )

    def absence(self, program: str) -> str:
        path = self.machine.program(program)
        return f"no {program} on PATH" if path is None else f"{path}, which fails or reports no version"

    def fabric_devices(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the fabric whose devices the kernel has, and their files."""
        if self.machine.names("/sys/class/cxi"):
            return "slingshot-11", self.files("/dev", r"cxi[0-9]+")
        cards = self.machine.names("/sys/class/infiniband")
        files = self.files("/dev/infiniband", r"uverbs[0-9]+|rdma_cm")
        if any(card.startswith("hfi1") for card in cards):
            return "omni-path", self.files("/dev", r"hfi1_[0-9]+")
        if any(card.startswith("efa") or "rdmap" in card for card in cards):
            return "efa", files
        layers = [self.machine.text(f"/sys/class/infiniband/{card}/ports/1/link_layer") for card in cards]
        if "InfiniBand" in layers:
            return "infiniband", files
        return ("roce", files) if "Ethernet" in layers else (None, ())

    def fabric_rate(self) -> Rate | None:
        """Return the rate of InfiniBand's links, if it is the same of all that are up."""
        found = set()
        for card in self.machine.names("/sys/class/infiniband"):
            port = f"/sys/class/infiniband/{card}/ports/1"
            rate = re.search(r"\([0-9]+X ([A-Z]+)", self.machine.text(f"{port}/rate"))
            if rate and "ACTIVE" in self.machine.text(f"{port}/state"):
                found.add(rate[1])
        return next((rate for rate in get_args(Rate) if found == {rate}), None)

    def files(self, directory: str, pattern: str) -> tuple[str, ...]:
        names = self.machine.names(directory)
        return tuple(f"{directory}/{name}" for name in names if re.fullmatch(pattern, name))

    def runtimes(self) -> tuple[SiteRuntime, ...]:
        # `singularity` of an Apptainer is Apptainer, too.
        found = next(filter(None, map(self.runtime, ("apptainer", "singularity"))), None)
        return (found,) if found is not None else ()

    def runtime(self, program: str) -> SiteRuntime | None:
        """Return the runtime that a program of the machine is; None if there is none, or it is unknown."""
        version = re.search(
            rf"^(apptainer|singularity-ce) version ({VERSION})",
            self.output_of(program, "--version"),
            re.MULTILINE,
        )
        if version is None:
            return None
        name = version[1].replace("-", "")
        self.reasons[f"runtimes.{name}.user_namespaces"] = "the kernel does not report it"
        self.reasons[f"runtimes.{name}.setuid"] = f"{program}'s settings cannot be read"
        return SiteRuntime(
            name=name,
            version=version[2],
            user_namespaces=self.machine.allows_user_namespaces(),
            setuid=configuration(self.output_of(program, "buildcfg"), self.machine).setuid,
        )

    def modules(self) -> Literal["lmod", "environment-modules"] | None:
        if self.machine.exists("/usr/share/lmod/lmod/libexec/lmod"):
            return "lmod"
        return self.machine.module_system()


def _version_in(text: str) -> str | None:
    """Return the first version in a text: ``5.8`` of ``MLNX_OFED_LINUX-5.8-1.1.2.1:``."""
    match = re.search(r"[0-9]+(?:\.[0-9]+)+", text)
    return match[0] if match else None


def mpi_types(listed: str) -> tuple[str, ...]:
    """Return the types that ``srun --mpi=list`` lists, sorted.

    Older releases write ``srun: none`` on standard error, newer ones a list with the versions of pmix below
    it.
    """
    types: set[str] = set()
    for line in listed.splitlines():
        text = line.strip().removeprefix("srun:").strip()
        if text.lower().startswith("specific pmix plugin versions available:"):
            text = text.partition(":")[2]
            types.update(re.findall(r"pmix_v[0-9]+", text))
        elif re.fullmatch(r"[a-z][a-z0-9_/]*", text):
            types.update(text.split("/"))
    return tuple(sorted(types))
