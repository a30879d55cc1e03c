"""Runs the preflight of a scanned image: problems of its processes, and facts for the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from envbuild.elf.gpu import GpuCode
from envbuild.elf.loader import Closure
from envbuild.elf.mpi import mpi_abi
from envbuild.errors import RequestError, pluralize
from envbuild.image.environment import apply
from envbuild.image.startup import EMPTY_DIRECTORIES
from envbuild.jobs.envbuild_libraries import GPU_TRANSPORT, MPI_SONAMES, major_of
from envbuild.jobs.report import CheckResult
from envbuild.preflight.gpu import framework_facts
from envbuild.preflight.missing import HINT_IMAGE, judge_missing
from envbuild.preflight.package_facts import package_facts
from envbuild.preflight.problems import EXPECTED, judge, mismatch, order_of, rpath_files
from envbuild.preflight.processes import Simulation
from envbuild.preflight.python_packages import HINT_MISSING, HINT_OTHER, judge_python
from envbuild.preflight.scan import FileSystemScan, ImageScan, ScannedFile, scan_host_file
from envbuild.rules.facts import Fact, Value, facts_from, newest
from envbuild.rules.from_lock import facts_of_image
from envbuild.rules.judge import RuleResult
from envbuild.rules.tables import version_of
from envbuild.spec.model import Excuse

# Shown problems of one rule: others have the same cause.
_SHOWN = 20
# Hint for an image that a spec describes → that for another.
_HINTS_WITHOUT_SPEC = {
    HINT_IMAGE: "leave out what needs it, or add a build of it without this library (such as `…-headless`)",
    HINT_MISSING: "`envbuild extend --python NAME` adds it",
    HINT_OTHER: "two distributions want other versions of it: `--upgrade NAME` lets one of the two change",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The result for an image."""

    problems: tuple[CheckResult, ...]
    """Each is of a file, its `subject`; sorted, and empty for a good image. Without those that the spec
    excuses.
    """
    excused: tuple[str, ...]
    """Missing libraries that are no problem: a driver's, a host's for plug-ins, those of files that are not
    loaded, and those that the recipes allow to be missing."""
    objects: int
    processes: int
    """Programs and modules that were simulated (count)."""
    distributions: int = 0
    """Python distributions whose requirements were judged (count)."""
    excuses: Mapping[Excuse, tuple[CheckResult, ...]] = field(default_factory=dict)
    """Excuses of the spec, each with what it excuses."""
    gpu_code: Mapping[str, GpuCode] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts of the image for the rules: of its files, its lock and its environment."""

    @property
    def passed(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def findings(self) -> list[CheckResult]:
        """Return each problem, each that the spec excuses, and a pass for each rule without any."""
        results = []
        for rule, expected in EXPECTED.items():
            of_rule = [found for found in (*self.problems, *self._accepted()) if found.id == rule]
            results += of_rule or [CheckResult("PASS", rule, expected, self._observed(rule))]
        for excuse, excused in self.excuses.items():
            if not excused:
                expected, hint = f"{excuse.id} in {excuse.path}", "remove it from `check` in the spec"
                results.append(CheckResult("SKIP", "check.excuse", expected, "nothing to excuse", hint))
        return results

    def checks(self) -> list[CheckResult]:
        """Return the lines of a report: as `findings`, with one for all files that get the same.

        Of many lines of a rule, the first ones.
        """
        results = []
        for rule, lines in groupby(_lines(self.findings()), key=lambda line: line.id):
            of_rule = list(lines)
            failed = [line for line in of_rule if line.status == "FAIL"]
            results += failed[:_SHOWN]
            if len(failed) > _SHOWN:
                more = f"{len(failed) - _SHOWN} more of this rule"
                results.append(CheckResult("FAIL", rule, EXPECTED[rule], more, "`--json` has all of them"))
            results += [line for line in of_rule if line.status != "FAIL"]
        return results

    def _accepted(self) -> Iterator[CheckResult]:
        for excuse, excused in self.excuses.items():
            hint = f"excused by the spec: {excuse.reason}"
            yield from (replace(found, status="SKIP", hint=hint) for found in excused)

    def _observed(self, rule: str) -> str:
        if rule == "loader.libraries" and self.excused:
            return f"all that are loaded; left to the host or not needed: {', '.join(self.excused)}"
        if rule.startswith("python."):
            return f"{self.distributions} distributions"
        return f"{self.objects} ELF files" if rule == "loader.objects" else f"{self.processes} processes"


def run_preflight(scan: ImageScan, simulation: Simulation | None = None) -> PreflightReport:
    """Examine every process of an image, in a simulation of `simulate`; by default on its own libraries."""
    manifest = scan.manifest
    python_problems, distributions = judge_python(
        scan.files,
        python=manifest.python,
        architecture=manifest.architecture,
        requests=scan.lock.requests,
    )
    report = _examine(
        simulation or simulate(scan),
        python_problems,
        distributions,
        allowed=manifest.lacks,
        accelerator=manifest.accelerator,
    )
    excuses = {
        excuse: tuple(problem for problem in report.problems if _is_excused(problem, excuse))
        for excuse in manifest.excuses
    }
    excused = {problem for accepted in excuses.values() for problem in accepted}
    return replace(
        report,
        problems=tuple(_once([problem for problem in report.problems if problem not in excused])),
        excuses=excuses,
        facts=facts_of_image(scan.lock, report.facts, apply(manifest.environment, {})),
    )


def examine_files(
    files: FileSystemScan,
    python: tuple[set[CheckResult], int],
    *,
    architecture: str,
    library_path: Sequence[str],
) -> PreflightReport:
    """Examine every process of an image that has neither manifest nor lock.

    `python` is the result of `judge_python`, `library_path` LD_LIBRARY_PATH in the image, `architecture` in
    Debian's words.
    """
    simulation = Simulation(files, machine=architecture, library_path=library_path, host_libs={})
    report = _examine(simulation, *python)
    problems = [
        replace(problem, hint=_HINTS_WITHOUT_SPEC.get(problem.hint, problem.hint))
        for problem in report.problems
    ]
    facts = {**toolkit_facts(simulation), **report.facts}
    return replace(report, problems=tuple(_once(problems)), facts=facts)


def worsened(now: PreflightReport, before: PreflightReport) -> PreflightReport:
    """Return the report of a changed image without the problems that it had before."""
    known = {_identity(problem) for problem in before.problems}
    problems = tuple(problem for problem in now.problems if _identity(problem) not in known)
    return replace(now, problems=problems)


def _examine(
    simulation: Simulation,
    python_problems: set[CheckResult],
    distributions: int,
    allowed: Sequence[str] = (),
    accelerator: str = "",
) -> PreflightReport:
    """Return all problems, sorted, and the facts of the files."""
    processes = list(simulation.processes())
    missing_problems, excused = judge_missing(
        processes, simulation, allowed, accelerator=accelerator.partition("@")[0]
    )
    problems = {problem for process in processes for problem in judge(process, simulation)}
    problems |= {*missing_problems, *python_problems}
    problems |= {
        mismatch("loader.objects", file=path, need="a whole ELF file", winner=reason, hint="it is damaged")
        for path, reason in simulation.tree.scan.unreadable.items()
    }
    code = {path: file.gpu for path, file in simulation.objects.items() if file.gpu is not None}
    return PreflightReport(
        problems=tuple(sorted(problems, key=order_of)),
        excused=tuple(sorted(excused)),
        objects=len(simulation.objects),
        processes=len(processes),
        distributions=distributions,
        gpu_code=code,
        facts={
            **_facts(simulation, processes),
            **package_facts(simulation.tree.scan),
            **framework_facts(code),
        },
    )


def simulate(scan: ImageScan, host_libs: Mapping[str, Path] | None = None) -> Simulation:
    """Return the processes of an image.

    `host_libs` maps a soname to a library of the host, in a directory that the loader searches first.
    RequestError: one of them cannot be read.
    """
    variables = apply(scan.manifest.environment, {})
    return Simulation(
        scan.files,
        machine=scan.manifest.architecture,
        library_path=[*variables.get("LD_LIBRARY_PATH", "").split(":"), *EMPTY_DIRECTORIES],
        host_libs=_scan_host_libs(host_libs or {}),
    )


def _scan_host_libs(paths: Mapping[str, Path]) -> dict[str, ScannedFile]:
    """Scan libraries of the host; one file under two names stays one."""
    by_file: dict[Path, ScannedFile | None] = {}
    libraries = {}
    for name, path in sorted(paths.items()):
        try:
            file = path.resolve(strict=True)
            if file not in by_file:
                by_file[file] = scan_host_file(file)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RequestError(
                f"the host's library `{path}` cannot be read: {reason}",
                hint="`mpi.libraries` or `fabric.libraries` of the site file names it",
            ) from error
        scanned = by_file[file]
        if scanned is None:
            raise RequestError(
                f"the host's `{path}` is not a shared library",
                hint="`mpi.libraries` or `fabric.libraries` of the site file names a shared library itself",
            )
        libraries[name] = scanned
    return libraries


def _facts(simulation: Simulation, processes: Sequence[Closure]) -> dict[str, Fact]:
    """Return the facts of an image's files on MPI, cuDNN, ROCm and the C++ library."""
    offered = (simulation.find(name) for name in MPI_SONAMES)
    offered_abis = {mpi_abi(lib.elf.soname, lib.symbols.defined) for lib in offered if lib is not None}
    needed = {pair for process in processes for pair in _needed_mpis(process, simulation)}
    rpath = {path for process in processes for path in rpath_files(process, simulation)}
    files = simulation.objects.values()
    cxx = simulation.find("libstdc++.so.6")
    names = {name for file in files for name in (file.elf.soname, *file.elf.needed) if name}
    # An MPI that no program finds by its name may still be one that a script loads.
    none_found = None if simulation.table.families["mpi"].is_library(*names) else ()
    values: dict[str, Value | None] = {
        "mpi.abis": tuple(sorted(filter(None, offered_abis))) or none_found,
        "mpi.needed_abis": tuple(sorted({abi for _, abi in needed})) or none_found,
        "mpi.needed_sonames": tuple(sorted({name for name, _ in needed})) or none_found,
        "mpi.rpath_files": tuple(sorted(rpath)),
        "mpi.gtl": any(name.startswith(GPU_TRANSPORT) for file in files for name in file.elf.needed),
        "libc.family": _libc(simulation),
        "cuda.driver_library": _driver_library(simulation),
        **_compatibility_package(simulation),
        "cudnn.loaded": _oldest_loaded("cudnn", simulation, processes),
        "nccl.loaded": _oldest_loaded("nccl", simulation, processes),
        "rocm.toolkit": _rocm_major(simulation),
        "libstdcxx.image": newest(cxx.elf.versions_defined, "GLIBCXX") if cxx else None,
    }
    return facts_from(values, "image")


def _needed_mpis(process: Closure, simulation: Simulation) -> Iterator[tuple[str, str]]:
    """Yield name and ABI of each MPI library that a process needs and gets."""
    family = simulation.table.families["mpi"]
    program = process.objects[0]
    # An MPI's own tools do not work on another one.
    if family.owns(program.path, *program.names):
        return
    for dependent in process.objects:
        for name, winner in dependent.needs.items():
            # A part of an MPI may ask for another part of it.
            if not family.is_library(name) or family.is_library(*dependent.names):
                continue
            abi = mpi_abi(winner.elf.soname or name, simulation.scanned(winner).symbols.defined)
            # An extension for an absent MPI needs nothing that a host could give.
            if abi is not None:
                yield name, abi


def toolkit_facts(simulation: Simulation) -> dict[str, Fact]:
    """Return the release and majors of an image's CUDA by its files: where no lock says what was chosen."""
    family = simulation.table.families["cudart"]
    paths = [path for path, file in simulation.objects.items() if family.is_library(file.elf.soname)]
    texts = [text for path in paths if (text := _version_of_file(path, simulation))]
    versions = [(version, text) for text in texts if (version := version_of(text)) is not None]
    release = ".".join(max(versions)[1].split(".")[:2]) if versions else None
    majors = {major_of("cudart", simulation.objects[path].elf.soname) for path in paths}
    # A static run-time library leaves no file.
    values = {"cuda.toolkit": release, "cuda.majors": tuple(sorted(filter(None, majors))) or None}
    return facts_from(values, "image")


def _oldest_loaded(family_name: str, simulation: Simulation, processes: Sequence[Closure]) -> str | None:
    """Return the oldest library of a family that a process loads; None if the version of one is unknown."""
    family = simulation.table.families[family_name]
    paths = {
        simulation.path_of(loaded)
        for process in processes
        for loaded in process.objects
        # A library that nothing loads is examined as a process: the loader did not choose it.
        if loaded.parent is not None and family.is_library(*loaded.names, loaded.elf.soname)
    }
    texts = [_version_of_file(path, simulation) for path in sorted(paths)]
    versions = [(version, text) for text in texts if text and (version := version_of(text)) is not None]
    return min(versions)[1] if versions and len(versions) == len(texts) else None


def _version_of_file(path: str, simulation: Simulation) -> str | None:
    """Return the version of one of NVIDIA's libraries: its file name's, or that of its distribution."""
    in_name = re.search(r"\.so\.([0-9]+\.[0-9]+\.[0-9.]+)$", path)
    if in_name:
        return in_name[1]
    scan = simulation.tree.scan
    owner = scan.owners.get(path, "")
    if not owner and (part := re.match(r"(.*/(?:site|dist)-packages)/nvidia/([a-z_]+)/", path)):
        # A distribution without a list of its files.
        names = (name for name in scan.distributions if name.startswith(f"{part[1]}/nvidia_{part[2]}_"))
        owner = next(names, "")
    return scan.distributions[owner].version if owner in scan.distributions else None


def _compatibility_package(simulation: Simulation) -> dict[str, Value | None]:
    """Return the facts of NVIDIA's ``cuda-compat``, whose files are ``compat/libcuda.so.575.57.08``."""
    names = (
        re.search(r"/compat/(?:lib(?:\.real)?/)?libcuda\.so\.([0-9]+\.[0-9.]+)$", path)
        for path in simulation.objects
    )
    found = sorted((version_of(name[1]) or (), name[1]) for name in names if name)
    return {"cuda.forward_compat": bool(found), "cuda.compat": found[-1][1] if found else None}


def _driver_library(simulation: Simulation) -> str:
    """Return whose ``libcuda.so.1`` a program gets where a runtime adds the host's to LD_LIBRARY_PATH.

    Runtimes add theirs behind the image's own directories, and before those of the loader's cache.
    """
    directories = (directory for directory in simulation.search.library_path if directory)
    is_own = any(simulation.tree.at(f"{directory}/libcuda.so.1") for directory in directories)
    return "image" if is_own else "host"


def _libc(simulation: Simulation) -> str | None:
    """Return the C library by the loader that programs name; None for programs of both, or of others."""
    loaders = {file.elf.interpreter.rpartition("/")[2] for file in simulation.objects.values()}
    families = {
        family
        for family, beginning in (("glibc", "ld-linux"), ("musl", "ld-musl"))
        if any(loader.startswith(beginning) for loader in loaders)
    }
    return families.pop() if len(families) == 1 else None


def _rocm_major(simulation: Simulation) -> str | None:
    """Return the major of the image's ROCm; None without any, or with several."""
    sonames = {file.elf.soname for file in simulation.objects.values()}
    majors = {major for name in sonames if (major := major_of("hip", name))}
    return majors.pop() if len(majors) == 1 else None


def _lines(findings: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Yield one line for all files that get the same instead of the same."""
    groups: dict[CheckResult, list[str]] = {}
    for found in findings:
        groups.setdefault(replace(found, subject=""), []).append(found.subject)
    for line, (first, *others) in groups.items():
        files = f"{first} and {pluralize(len(others), 'other file')} get" if others else f"{first} gets"
        yield replace(line, observed=f"{files} {line.observed}") if first else line


def _once(problems: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Yield each problem once: many programs may load the same two copies."""
    seen: set[tuple[str, ...]] = set()
    for problem in problems:
        if (identity := _identity(problem)) not in seen:
            seen.add(identity)
            yield problem


def _is_excused(problem: CheckResult, excuse: Excuse) -> bool:
    return problem.id == excuse.id and fnmatchcase(problem.subject, excuse.path)


def _identity(problem: CheckResult) -> tuple[str, ...]:
    file = "" if problem.id in ("loader.copies", "loader.cudnn") else problem.subject
    return problem.id, file, problem.expected, problem.observed


def checks_of(results: Sequence[RuleResult]) -> Iterator[CheckResult]:
    """Yield a line of a report for each rule result; of unknown ones, for those that warn."""
    for result in results:
        if result.outcome == "unknown" and not result.warn:
            continue
        observed = result.reason
        if result.outcome == "compatible":
            observed = ", ".join(f"{path}={fact}" for path, fact in result.facts.items())
        elif result.missing:
            observed = f"unknown: {', '.join(result.missing)}"
        if result.partition:
            observed = f"{result.partition}: {observed}"
        why = (*result.fact_lines, f"source: {result.source}") if result.outcome == "incompatible" else ()
        hint = "; ".join(text for text in (result.hint, *why) if text)
        name = f"{result.rule}/{result.subject}" if result.subject else result.rule
        yield replace(result.finding, id=name, observed=observed, hint=hint, subject="")
