"""Examine every process of an image: its problems, and facts for the rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envbuild.elf.gpu import GpuCode
from envbuild.elf.mpi import mpi_abi
from envbuild.jobs.report import Finding
from envbuild.preflight.gpu import framework_code
from envbuild.preflight.problems import EXPECTED, Problem, judge, rpath_files
from envbuild.preflight.requires import PythonSide
from envbuild.preflight.simulate import Process, Simulation, name_of
from envbuild.rules.facts import Fact, Value, facts_from, newest
from envbuild.rules.tables import version_of

_OF_THE_IMAGE = "add what brings it to the spec's packages, or name its directory in LD_LIBRARY_PATH"
_OF_THE_HOST = "a library of the host needs it: add it to `libraries` in the site file"
_OF_THE_CACHE = (
    "it came after the last `ldconfig`, and the image is read-only: name its directory in LD_LIBRARY_PATH"
)
# Libraries that an image leaves to its host: drivers, fabric and schedulers' libraries; and other MPIs,
# for which some wheels bring one extension each (mpi4py) and pick the one that fits at import.
HOST_LIBRARIES = re.compile(
    r"lib(cuda|nvidia-ml|nvcuvid|nvidia-encode|nvidia-ptxjitcompiler|gdrapi|cufile|cufile_rdma|ze_loader"
    r"|amdhip64|hsa-runtime64|rocm_smi64|ibverbs|mlx5|mlx4|efa|rdmacm|ibumad|ibmad|infinipath|psm2?|psm_infinipath|opx"
    r"|cxi|xpmem|knem|lustreapi|nl-3|nl-route-3|ucp|ucs|uct|ucm|fabric|lsf|bat|torque|pbs|pmi2?|pmix|fuse3?"
    r"|mpi|mpi_abi|oshmem|mpifort|mpi_cxx|mpi_mpifh|mpi_usempi|impi)\.so(\.|$)"
)
# A driver's libraries are never in an image, even if a program needs them.
DRIVER_LIBRARIES = re.compile(r"lib(cuda|nvidia-ml|amdhip64|hsa-runtime64)\.so(\.|$)")
# So many findings of one rule are shown: the rest has the same cause.
_SHOWN = 20
# Names by which programs find an MPI's C library.
_MPI_NAMES = ("libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.20", "libmpi.so.40")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The result for an image."""

    problems: tuple[Problem, ...]
    """Sorted; empty for a good image."""
    excused: tuple[str, ...]
    """Missing libraries that are no problem: a driver's, a host's for plugins, and what
    the recipes allow to be missing."""
    objects: int
    processes: int
    """ELF files, and programs and modules that were simulated (count)."""
    distributions: int = 0
    """Python distributions whose requirements were judged (count)."""
    gpu_code: Mapping[str, GpuCode] = field(default_factory=dict)
    """Path → code for GPUs that the file holds."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts of the files, for the rules."""

    @property
    def passed(self) -> bool:
        """Whether the image is good."""
        return not self.problems

    def findings(self) -> list[Finding]:
        """Return a line of a report for each problem, and for each rule without any."""
        findings = []
        for rule, expected in EXPECTED.items():
            problems = [problem for problem in self.problems if problem.rule == rule]
            findings += [
                Finding("FAIL", rule, problem.need, f"{problem.file} gets {problem.winner}", problem.hint)
                for problem in problems[:_SHOWN]
            ]
            if len(problems) > _SHOWN:
                more = f"{len(problems) - _SHOWN} more of this rule"
                findings.append(Finding("FAIL", rule, expected, more, "`--json` has all of them"))
            if not problems:
                findings.append(Finding("PASS", rule, expected, self._observed(rule)))
        return findings

    def _observed(self, rule: str) -> str:
        if rule == "loader.libraries" and self.excused:
            return f"all; left to the host or lacking as the recipes say: {', '.join(self.excused)}"
        if rule.startswith("python."):
            return f"{self.distributions} distributions"
        return f"{self.objects} ELF files" if rule == "loader.objects" else f"{self.processes} processes"


def examine(
    simulation: Simulation,
    *,
    lacks: Collection[str] = (),
    python: PythonSide = PythonSide(),  # noqa: B008  # frozen
) -> Preflight:
    """Examine every process of an image.

    Parameters
    ----------
    lacks : collection of str
        Libraries that may be missing, as recipes say.
    python : PythonSide
        What was found of its Python distributions.
    """
    facts = _FactCollector(simulation)
    problems: set[Problem] = set()
    missing: dict[str, set[str]] = {}
    count = 0
    for process in simulation.processes():
        count += 1
        for gap in process.closure.missing:
            missing.setdefault(simulation.tree.real(gap.path) or gap.path, set()).add(gap.name)
        problems |= set(judge(process, simulation))
        facts.add(process)
    unexcused, excused = _unexcused(missing, simulation, frozenset(lacks))
    problems |= {*unexcused, *python.problems}
    problems |= {
        Problem("loader.objects", path, "a whole ELF file", why, "it is damaged")
        for path, why in simulation.tree.unreadable.items()
    }
    code = {path: scanned.gpu for path, scanned in simulation.objects.items() if scanned.gpu is not None}
    return Preflight(
        problems=tuple(_once(sorted(problems))),
        excused=tuple(sorted(excused)),
        objects=len(simulation.objects),
        processes=count,
        distributions=python.distributions,
        gpu_code=code,
        facts=facts.facts(code),
    )


class _FactCollector:
    """Collects facts while processes are examined, one after the other."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._names: set[str] = set()
        self._abis: set[str] = set()
        self._tied: set[str] = set()
        self._cudnn: set[str] = set()

    def add(self, process: Process) -> None:
        """Note the MPI that a process needs and gets, and its cuDNN."""
        simulation = self._simulation
        self._tied.update(rpath_files(process, simulation))
        cudnn = simulation.table.families["cudnn"]
        self._cudnn.update(
            simulation.path_of(loaded)
            for loaded in process.closure.objects
            # A library that nothing loads is examined as a process, and is no choice of the loader.
            if loaded.parent is not None and cudnn.is_library(*loaded.names, loaded.found.soname)
        )
        family = simulation.table.families["mpi"]
        # An MPI's own tools are of no use on another one.
        if family.owns(process.path, *process.closure.objects[0].names):
            return
        for asking in process.closure.objects:
            for name, winner in asking.needs.items():
                # A part of an MPI may ask for another part of it.
                if not family.is_library(name) or family.is_library(*asking.names):
                    continue
                abi = mpi_abi(winner.found.soname or name, simulation.scanned(winner).symbols.defined)
                # An extension for an absent MPI needs nothing that a host could give.
                if abi is not None:
                    self._names.add(name)
                    self._abis.add(abi)

    def facts(self, code: Mapping[str, GpuCode]) -> dict[str, Fact]:
        """Return the facts.

        Parameters
        ----------
        code : mapping of str to GpuCode
            GPU code of the image's files.
        """
        cxx = self._simulation.find("libstdc++.so.6")
        values: dict[str, Value | None] = {
            "mpi.abis": tuple(self._offered()) or None,
            "mpi.needed_abis": tuple(sorted(self._abis)) or None,
            "mpi.needed_sonames": tuple(sorted(self._names)) or None,
            "mpi.rpath_files": tuple(sorted(self._tied)),
            "mpi.gtl": any(name.startswith("libmpi_gtl_") for name in self._needed()),
            "cudnn.loaded": self._oldest_cudnn(),
            "rocm.toolkit": self._rocm(),
            "libstdcxx.image": newest(cxx.elf.versions_defined, "GLIBCXX") if cxx else None,
        }
        compiled = {f"frameworks.{name}.architectures": fact for name, fact in framework_code(code).items()}
        return {**facts_from(values, "image"), **compiled}

    def _needed(self) -> Iterator[str]:
        for scanned in self._simulation.objects.values():
            yield from scanned.elf.needed

    def _offered(self) -> list[str]:
        """Return the ABIs of the libraries that a program gets which opens an MPI by name, sorted."""
        libraries = (self._simulation.find(name) for name in _MPI_NAMES)
        abis = (mpi_abi(lib.elf.soname, lib.symbols.defined) for lib in libraries if lib is not None)
        return sorted({abi for abi in abis if abi is not None})

    def _oldest_cudnn(self) -> str | None:
        """Return the oldest cuDNN that a process loads; None if the version of one is unknown."""
        versions = [self._cudnn_version(path) for path in sorted(self._cudnn)]
        known = [(version_of(text), text) for text in versions if text is not None]
        compared = [(version, text) for version, text in known if version is not None]
        return min(compared)[1] if versions and len(compared) == len(versions) else None

    def _cudnn_version(self, path: str) -> str | None:
        """Return a libcudnn's version: its file name's, or that of the distribution that it belongs to."""
        named = re.search(r"\.so\.([0-9]+\.[0-9]+\.[0-9.]+)$", path)
        if named:
            return named[1]
        place = re.match(r"(.*/(?:site|dist)-packages)/nvidia/", path)
        for metadata, installed in self._simulation.tree.distributions.items():
            if place and metadata.startswith(f"{place[1]}/nvidia_cudnn"):
                return installed.version
        return None

    def _rocm(self) -> str | None:
        """Return the major of the image's ROCm; None without any, or with several."""
        sonames = {scanned.elf.soname for scanned in self._simulation.objects.values()}
        majors = {match[1] for name in sonames if (match := re.fullmatch(r"libamdhip64\.so\.([0-9]+)", name))}
        return majors.pop() if len(majors) == 1 else None


def _unexcused(
    missing: Mapping[str, set[str]], simulation: Simulation, lacks: frozenset[str]
) -> tuple[list[Problem], set[str]]:
    excused: set[str] = set()
    left: dict[str, set[str]] = {}
    for path, names in missing.items():
        fine = {name for name in names if name in lacks or DRIVER_LIBRARIES.match(name)}
        excused |= fine
        if names - fine:
            left[path] = names - fine
    plugins = _plugins(left, simulation)
    for path in plugins:
        excused |= left.pop(path)
    problems = [_missing(path, name, simulation) for path, names in left.items() for name in names]
    return problems, excused


def _missing(path: str, name: str, simulation: Simulation) -> Problem:
    uncached = simulation.uncached(name)
    hint = _OF_THE_HOST if simulation.is_lent(path) else _OF_THE_IMAGE
    winner = f"nothing, for {uncached} is not in the loader's cache" if uncached else "nothing"
    return Problem("loader.libraries", path, name, winner, _OF_THE_CACHE if uncached else hint)


def _plugins(missing: Mapping[str, set[str]], simulation: Simulation) -> set[str]:
    """Return plug-ins whose missing libraries all belong to a host and which no other file needs.

    A host's own library is no plug-in: nothing else could bring what it lacks.
    """

    def elf(path: str) -> tuple[str, bool]:
        found = simulation.tree.lookup(path)
        return (name_of(path, found), bool(found.interpreter)) if found else ("", True)

    plugins = {
        path
        for path, names in missing.items()
        if not elf(path)[1]
        and not simulation.is_lent(path)
        and all(HOST_LIBRARIES.match(name) for name in names)
    }
    while True:
        needed = {
            name
            for path, scanned in simulation.objects.items()
            if path not in plugins
            for name in scanned.elf.needed
        }
        kept = {path for path in plugins if not {elf(path)[0], path.rpartition("/")[2]} & needed}
        if kept == plugins:
            return plugins
        plugins = kept


def _once(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield each problem once: many programs may load the same two copies."""
    seen: set[tuple[str, str, str, str]] = set()
    for problem in problems:
        file = "" if problem.rule in ("loader.copies", "loader.cudnn") else problem.file
        key = (problem.rule, file, problem.need, problem.winner)
        if key not in seen:
            seen.add(key)
            yield problem
