"""Judge jobs from the facts that their ranks report. Pure."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuild.jobs.arithmetic import evaluate
from envbuild.jobs.envbuild_gpus import ELEMENTS
from envbuild.jobs.envbuild_libraries import DRIVER_SONAMES, ONCE, is_blas, is_library
from envbuild.jobs.imports import is_private
from envbuild.jobs.rank_reports import Reports, number_of, values_of
from envbuild.jobs.report import (
    GPU_VISIBLE,
    IMPORTS,
    NO_JOBS,
    NO_PACKAGES,
    CheckResult,
    LoadedBlas,
    Measured,
    significant,
)

TUTORIALS = "image.tutorials"
GPU_KERNEL = "gpu.kernel"
SEE_RANKS = "see the `ranks` check of this job"
SEE_GPUS = "see the check `gpu.visible`"
GPUS_HINT = (
    "does the scheduler's job have a GPU (`--gpus`), and does `nvidia-smi` work, "
    "also by `apptainer exec --nv IMAGE nvidia-smi`?"
)
TEMPLATE = "still_the_template"
"""Value that the job of a recipe reports until somebody has written it."""
# Prefixes of an image's distributions; those of an MPI serve wheels that are linked with it.
PREFIXES = ("/opt/env", "/opt/mpi", "/opt/fabric", "/opt/accel")
# Directory of an image with the files that its jobs need.
JOBS = "/.envbuild/jobs"
_TUTORIALS = "/.envbuild/tutorials"
# As the loader of glibc words it.
_ABSENT_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[.0-9]*): cannot open shared object file")
_STANDARD_LIBRARY = re.compile(r"/lib(?:64)?/python[0-9.]+/(?!(?:site|dist)-packages/)")
_IMPORTS_HINT = (
    "take another version of it, or leave it out; `imports: {PACKAGE: [MODULE]}` in the spec names what to"
    " import instead"
)
_SHADOWED = "another directory comes first where Python looks: PYTHONPATH of the image, or a `.pth` file"
# Spellings of one kind of release (PEP 440).
_SAME_WORDS = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc", "rev": "post", "r": "post"}
_LONGEST = 1000  # characters of a text from an image
_MOST_MODULES = 100  # of one package


@dataclass(frozen=True)
class Measure:
    """A number that ranks report and that a test shows."""

    unit: str
    higher_is_better: bool = True


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Job:
    """A job, as an image stores it and the judge takes it; `spec.job.JobHeader` documents its fields."""

    id: str
    recipe: str
    file: str
    """It runs ``JOBS/<recipe>/<file>``."""
    title: str = ""
    expect: Mapping[str, str] = field(default_factory=dict)
    same_on_all_ranks: Sequence[str] = ()
    compare_with_single: Mapping[str, float] = field(default_factory=dict)
    compare_with_reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hint: str = ""
    timeout_s: float | None = None
    launcher: str = "mpiexec"
    environment: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, Sequence[str]] = field(default_factory=dict)
    variants: Sequence[str] = ()
    own_mpi: bool = False
    at_least: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, Measure] = field(default_factory=dict)
    gpus_per_rank: int = 0

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Job:
        """Return a job from a manifest's JSON; unknown keys are ignored."""
        measures = {
            name: Measure(**_known(Measure, value)) for name, value in data.get("measures", {}).items()
        }
        return cls(**{**_known(cls, data), "measures": measures})

    def tolerances(self) -> dict[str, float]:
        """Return the checks that compare numbers, each with its allowed relative difference."""
        single = {f"{self.id}/{name}-as-one-rank": limit for name, limit in self.compare_with_single.items()}
        reported = {
            f"{self.id}/{name}-as-{other}": limit
            for name, others in self.compare_with_reported.items()
            for other, limit in others.items()
        }
        return {**single, **reported}

    def command(self) -> list[str]:
        """Return the command line of one rank in the image; ValueError if a name in it is not plain."""
        for name in (self.recipe, self.file):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"`{name}` is not a plain name")
        return ["python", "-s", f"{JOBS}/envbuild_job.py", f"{JOBS}/{self.recipe}/{self.file}"]


@dataclass(frozen=True)
class Package:
    """A Python distribution of an image, and what of it must import."""

    name: str
    """Canonical name."""
    version: str
    """Its version (PEP 440)."""
    requested: bool = True
    """Whether spec, recipe or `extend` name it; others are there because these need them."""
    modules: Sequence[str] | None = None
    """The modules to import; None for those that its files show."""
    sites: Sequence[str] = ()
    """The directories of packages of which one must hold it; empty for any."""

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Package:
        """Return a package from a manifest's JSON; unknown keys are ignored."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})  # type: ignore[arg-type]


def own_sites(python: str) -> list[str]:
    """Return the directories in which an image of ours has its Python packages, for its Python (``3.11``)."""
    return [f"{prefix}/lib/python{python}/site-packages" for prefix in PREFIXES]


@dataclass(frozen=True)
class Gpu:
    """A GPU that an image sees."""

    name: str
    id: str
    architecture: str
    sum: int | None = None
    """Of the kernel; None if it was not run, or failed."""
    error: str = ""


@dataclass(frozen=True)
class GpuSurvey:
    """The GPUs that an image sees, as `envbuild_gpus.survey` reports them."""

    vendor: str = ""
    """Vendor of the driver on this machine; empty without one."""
    gpus: Sequence[Gpu] = ()
    error: str = ""
    """Why none can be used, although there is a driver."""
    hidden: str = ""
    """The variable that chooses among the GPUs, as ``NAME=value``; empty without."""

    @classmethod
    def from_data(cls, data: object) -> GpuSurvey:
        """Return the survey of an image's JSON, which is untrusted; ValueError if it is none."""
        try:
            gpus = [Gpu(**{str(name): value for name, value in gpu.items()}) for gpu in data["gpus"]]  # type: ignore[index]
            texts = {name: str(data[name]) for name in ("vendor", "error", "hidden")}  # type: ignore[index]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a survey of GPUs: {error}") from error
        return cls(gpus=gpus, **texts)


@dataclass(frozen=True)
class LaunchResult:
    """How the processes of one launch ended."""

    code: int
    """Exit code of the launcher."""
    timed_out: bool = False
    """Whether they were ended after `limit_s` seconds."""
    limit_s: float = 0.0
    output: str = ""
    """The output of the launcher."""


def judge_job(
    job: Job, ranks: int, reports: Reports, ended: LaunchResult, single: Reports | None = None
) -> list[CheckResult]:
    """Judge one job from the reports of its `ranks`; `single` is the report of a run on one rank."""
    judge = _ValueJudge(job, ranks, reports)
    checks = [judge_ranks(job.id, ranks, reports), _judge_end(job, ended)]
    checks += [judge.exact(name) for name in sorted(job.expect)]
    checks += [judge.said(name) for name in sorted(job.says)]
    checks += [judge.at_least(name) for name in sorted(job.at_least)]
    checks += [judge.measured(name) for name in sorted(job.measures)]
    checks += [judge.own_gpus()] if job.gpus_per_rank else []
    checks += [judge.same(name) for name in job.same_on_all_ranks]
    checks += [judge.as_single(name, single or Reports()) for name in sorted(job.compare_with_single)]
    for name, others in sorted(job.compare_with_reported.items()):
        checks += [judge.as_reported(name, other) for other in sorted(others)]
    if reports.values(TEMPLATE) and not any(check.status == "FAIL" for check in checks):
        return [_skip_template(job)]
    return checks


def _skip_template(job: Job) -> CheckResult:
    expected = f"a job that uses {job.recipe}"
    hint = f"write what it does across ranks, and remove `{TEMPLATE}` from {job.file}"
    return CheckResult("SKIP", f"{job.id}/template", expected, "still the template", hint)


def judge_ranks(job_id: str, ranks: int, reports: Reports) -> CheckResult:
    """Judge that ranks 0…N-1 reported once each, each with size N, from N processes, and nothing unsound."""
    seen = sorted(number_of(report, "rank") for report in reports.good)
    sizes = sorted({number_of(report, "size") for report in reports.good})
    processes = {(report["host"], report["process"], report["pid"]) for report in reports.good}
    expected = f"ranks={_some(range(ranks))} size={ranks} processes={ranks}"
    observed = f"ranks={_some(seen)} size={_some(sizes)} processes={len(processes)}"
    if reports.problems:
        observed += f" unsound={len(reports.problems)}"
    hints = list(reports.problems[:3])
    if ranks > 1 and len(seen) > 1 and sizes == [1]:
        hints.append(
            f"{len(seen)} singletons, each rank 0 of 1: launcher and MPI library do not speak the same PMI; "
            "use the image's own mpiexec, or the right type of `srun --mpi`"
        )
    elif missing := sorted(set(range(ranks)) - set(seen)):
        hints.append(f"no sound report of rank {_some(missing)}: look at its output")
    if repeated := sorted({rank for rank in seen if seen.count(rank) > 1}):
        hints.append(f"rank {_some(repeated)} reported more than once")
    if len(processes) < len(seen):
        hints.append("two reports come from one process")
    sound = (
        seen == list(range(ranks)) and sizes == [ranks] and len(processes) == ranks and not reports.problems
    )
    return CheckResult(
        "PASS" if sound else "FAIL", f"{job_id}/ranks", expected, observed, "" if sound else "; ".join(hints)
    )


def skip_job(job: Job, ranks: int) -> CheckResult:
    """Skip a job that nothing in the image can start."""
    hint = "the image holds no MPI, whose mpiexec would start the ranks: add `mpi: mpich` to the spec"
    return CheckResult("SKIP", f"{job.id}/ranks", f"ranks={_some(range(ranks))}", "not started", hint)


def skip_unfit(job: Job, launcher: str, why: str) -> CheckResult:
    """Skip a job that proves nothing as the image is tested: its ranks need another launcher, or MPI."""
    return CheckResult("SKIP", f"{job.id}/launcher", f"a start that fits {job.id}", launcher, why)


def skip_gpu_job(job: Job, why: str) -> CheckResult:
    """Skip a job that needs GPUs."""
    return CheckResult("SKIP", f"{job.id}/gpus", f"gpus_per_rank={job.gpus_per_rank}", why, SEE_GPUS)


def no_jobs(hint: str = "the image carries no jobs: name an `mpi` or a framework in the spec") -> CheckResult:
    """Skip the jobs of an image that has none: its files and imports are all there is to test."""
    return CheckResult("SKIP", NO_JOBS, "jobs", "none", hint)


def no_fitting_jobs() -> CheckResult:
    """Skip the jobs of an image if none can run as it is tested."""
    hint = "`envbuild test` without --launcher and --mpi host may start them"
    return CheckResult("SKIP", "image.fitting-jobs", "a job that can run", "none", hint)


def _judge_end(job: Job, ended: LaunchResult) -> CheckResult:
    observed = f"ended after {ended.limit_s:g} s" if ended.timed_out else f"exit code {ended.code}"
    good = ended.code == 0 and not ended.timed_out
    hint = (
        "that is the limit: the output shows where each rank stood; `--timeout` sets another"
        if ended.timed_out
        else "the output says why"
    )
    return CheckResult(
        "PASS" if good else "FAIL", f"{job.id}/end", "exit code 0", observed, "" if good else hint
    )


class _ValueJudge:
    """Judges the values that the ranks of a job reported."""

    def __init__(self, job: Job, ranks: int, reports: Reports) -> None:
        self._job, self._ranks, self._reports = job, ranks, reports

    def _failed(self, name: str, expected: str, observed: str, hint: str | None = None) -> CheckResult:
        check = f"{self._job.id}/{name}"
        return CheckResult("FAIL", check, expected, observed, self._job.hint if hint is None else hint)

    def _passed(self, name: str, expected: str, observed: str) -> CheckResult:
        """Return a pass, or a skip if not all ranks reported."""
        check, count = f"{self._job.id}/{name}", len(self._reports.good)
        if count == self._ranks:
            return CheckResult("PASS", check, expected, observed)
        return CheckResult("SKIP", check, expected, f"{count} of {self._ranks} ranks reported", SEE_RANKS)

    def _values(self, name: str) -> list[object]:
        """Return a value of each rank that reported; None if it lacks the value."""
        return [values_of(report).get(name) for report in self._reports.good]

    def exact(self, name: str) -> CheckResult:
        """Judge that a value is what the recipe's expression gives for each rank."""
        expression = self._job.expect[name]
        # If no rank reported, the check of the ranks fails.
        hosts = len({report["host"] for report in self._reports.good}) or 1
        try:
            wanted = {
                rank: evaluate(expression, n=self._ranks, r=rank, h=hosts) for rank in range(self._ranks)
            }
        except ValueError as error:
            return self._failed(name, expression, "", f"the recipe's expression is wrong: {error}")
        expected = _some(sorted(set(wanted.values())))
        wrong = []
        for report in self._reports.good:
            rank, value = number_of(report, "rank"), values_of(report).get(name)
            # A rank that cannot be says nothing true; compare it with rank 0 so that it shows what it got.
            if type(value) not in (int, float) or value != wanted.get(rank, wanted[0]):
                wrong.append(f"{_short(value)} on rank {rank}")
        if wrong:
            return self._failed(name, expected, ", ".join(wrong[:4]))
        return self._passed(name, expected, expected)

    def said(self, name: str) -> CheckResult:
        """Judge that the log of each rank holds one of the texts."""
        expected = f"every rank's log says {' or '.join(repr(text) for text in self._job.says[name])}"
        silent = sorted(set(range(self._ranks)) - self._reports.said.get(name, frozenset()))
        if silent:
            return self._failed(name, expected, f"missing in the log of rank {_some(silent)}")
        return self._passed(name, expected, "every log does")

    def at_least(self, name: str) -> CheckResult:
        """Judge that a value is large enough on each rank."""
        floor = self._job.at_least[name]
        numbers = [_numbers(value) for value in self._values(name)]
        if any(len(number) != 1 for number in numbers):
            return self._failed(name, f">={floor:g}", "no number")
        least = min((number[0] for number in numbers), default=0.0)
        judged = self._failed if numbers and least < floor else self._passed
        return judged(name, f">={floor:g}", f"{least:g}")

    def measured(self, name: str) -> CheckResult:
        """Judge that each rank reported a number, whatever its value."""
        measure = self._job.measures[name]
        expected = f"a number ({measure.unit})"
        value = worst_of(measure, [_numbers(value) for value in self._values(name)])
        if value is None:
            return self._failed(
                f"{name}-measured", expected, "no number", "the job must report it on each rank"
            )
        return self._passed(f"{name}-measured", expected, f"{significant(value)} {measure.unit}")

    def own_gpus(self) -> CheckResult:
        """Judge that each rank used as many GPUs as it needs, and none that another rank used."""
        wanted = self._job.gpus_per_rank
        expected = f"{wanted} a rank, none shared"
        used: list[tuple[object, str]] = []
        for report in self._reports.good:
            gpus = values_of(report).get("gpus")
            ids = [gpu for gpu in gpus if isinstance(gpu, str) and gpu] if isinstance(gpus, list) else []
            if len(ids) != wanted:
                return self._failed("gpus", expected, f"{len(ids)} on rank {number_of(report, 'rank')}")
            used += [(report["host"], gpu) for gpu in ids]
        if shared := sorted({str(gpu) for _, gpu in used if used.count((_, gpu)) > 1}):
            hint = "two ranks used one GPU: start one rank for each, as `srun --gpus-per-task=1` does"
            return self._failed("gpus", expected, f"shared: {_some(shared)}", hint)
        return self._passed("gpus", expected, f"{len(used)} GPU{'s' if len(used) > 1 else ''}")

    def same(self, name: str) -> CheckResult:
        """Judge that all ranks report the same value."""
        expected = "the same on all ranks"
        values, count = self._reports.values(name), len(self._reports.good)
        try:
            texts = {json.dumps(value, sort_keys=True, allow_nan=False) for value in values}
        except ValueError:
            return self._failed(name, expected, "not a number")
        if len(texts) > 1:
            return self._failed(name, expected, f"{len(texts)} different")
        if len(values) < count:
            return self._failed(name, expected, f"{len(values)} of {count} reported it")
        return self._passed(name, expected, expected)

    def as_single(self, name: str, single: Reports) -> CheckResult:
        """Judge that a value differs little from that of the run on one rank."""
        limit = self._job.compare_with_single[name]
        alone = judge_ranks(self._job.id, 1, single)
        if alone.status != "PASS":
            problem = "the run on one rank gave no sound report"
            return self._failed(f"{name}-as-one-rank", _at_most(limit), problem, alone.hint)
        reference = values_of(single.good[0]).get(name)
        differences = [relative_difference(value, reference) for value in self._values(name)]
        return self._small(f"{name}-as-one-rank", differences, limit)

    def as_reported(self, name: str, other: str) -> CheckResult:
        """Judge that two values of each rank differ little."""
        differences = list(map(relative_difference, self._values(name), self._values(other)))
        return self._small(f"{name}-as-{other}", differences, self._job.compare_with_reported[name][other])

    def _small(self, name: str, differences: Sequence[float | None], limit: float) -> CheckResult:
        """Judge the difference on each rank; None stands for values that cannot be compared."""
        known = [difference for difference in differences if difference is not None]
        if len(known) < len(differences):
            return self._failed(name, _at_most(limit), "no comparable numbers")
        worst = max(known, default=0.0)
        judged = self._failed if worst > limit else self._passed
        return judged(name, _at_most(limit), f"difference={worst:.1e}")


def measured_by(job: Job, ranks: int, reports: Reports) -> tuple[Measured, ...]:
    """Return the measured values of a job of which all ranks reported a number."""
    found = []
    for name, measure in sorted(job.measures.items()):
        numbers = [_numbers(values_of(report).get(name)) for report in reports.good]
        value = worst_of(measure, numbers) if len(numbers) == ranks else None
        if value is not None:
            found.append(
                Measured(
                    job=job.id,
                    name=name,
                    value=value,
                    unit=measure.unit,
                    higher_is_better=measure.higher_is_better,
                    ranks=ranks,
                )
            )
    return tuple(found)


def worst_of(measure: Measure, numbers: Sequence[Sequence[float]]) -> float | None:
    """Return the worst number of all ranks; None unless each has one."""
    if not numbers or any(len(number) != 1 for number in numbers):
        return None
    worst = min if measure.higher_is_better else max
    return worst(number[0] for number in numbers)


def _at_most(limit: float) -> str:
    return f"difference<={limit:g}"


def judge_gpus(survey: GpuSurvey) -> list[CheckResult]:
    """Judge the GPUs that an image sees, and what the kernel gave on each of NVIDIA's."""
    expected = "a GPU"
    if survey.error:
        return [CheckResult("FAIL", GPU_VISIBLE, expected, survey.error, GPUS_HINT)]
    if not survey.gpus:
        why = f"hidden by {survey.hidden}" if survey.vendor and survey.hidden else "none here"
        status = "FAIL" if survey.vendor and not survey.hidden else "SKIP"
        hint = GPUS_HINT if status == "FAIL" else "not tested on a GPU; run the test on a node that has one"
        return [CheckResult(status, GPU_VISIBLE, expected, why, hint)]
    names = [" ".join(dict.fromkeys((gpu.name, gpu.architecture))) for gpu in survey.gpus]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    results = [CheckResult("PASS", GPU_VISIBLE, expected, _some(counted))]
    if survey.vendor == "nvidia":
        wanted = (ELEMENTS - 1) * ELEMENTS * (2 * ELEMENTS - 1) // 6
        wrong = [f"{gpu.id}: {gpu.error or gpu.sum}" for gpu in survey.gpus if gpu.sum != wanted]
        status, observed = ("FAIL", _some(wrong)) if wrong else ("PASS", f"{wanted} on each")
        hint = "this GPU computes wrongly or not at all: `nvidia-smi -q` shows its errors" if wrong else ""
        results.append(CheckResult(status, GPU_KERNEL, f"{wanted} on each", observed, hint))
    return results


def blas_of(job: str, reports: Reports) -> tuple[LoadedBlas, ...]:
    """Return the libraries of linear algebra of the ranks of a run, one entry for ranks with the same."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for report in reports.good:
        rank, libraries = report["rank"], report["libraries"]
        paths = [path for path in libraries if isinstance(path, str)] if isinstance(libraries, list) else []
        if isinstance(rank, int):
            own = tuple(sorted(path for path in paths if is_blas(path.rpartition("/")[2])))
            ranks.setdefault(own, []).append(rank)
    return tuple(
        LoadedBlas(job=job, ranks=tuple(sorted(of_them)), libraries=libraries)
        for libraries, of_them in sorted(ranks.items())
    )


def judge_mapped(reports: Iterable[Reports]) -> CheckResult:
    """Judge that a process maps at most one libmpi, one libnccl and one libcudart."""
    check, expected = "ranks.copies", "one of each per process"
    worst: dict[str, list[str]] = {}
    seen: set[str] = set()
    count = 0
    for report in (report for run in reports for report in run.good):
        count += 1
        libraries = report["libraries"]
        paths = [path for path in libraries if isinstance(path, str)] if isinstance(libraries, list) else []
        for family in ONCE:
            of_family = sorted({path for path in paths if is_library(family, path.rpartition("/")[2])})
            seen.update(of_family)
            if len(of_family) > max(1, len(worst.get(family, ()))):
                worst[family] = of_family
    if count == 0:
        return CheckResult("SKIP", check, expected, "no process reported", SEE_RANKS)
    if worst:
        observed = "; ".join(", ".join(paths) for _, paths in sorted(worst.items()))
        return CheckResult(
            "FAIL", check, expected, observed, "two copies in one process: one hides the other"
        )
    return CheckResult("PASS", check, expected, _some(sorted(seen)) or "none mapped")


def tutorial_file(recipe: str) -> str:
    """Return where an image keeps a recipe's tutorial: beside no file that it would import by mistake."""
    return f"{_TUTORIALS}/{recipe}/tutorial.py"


def modules_to_import(packages: Iterable[Package]) -> dict[str, Sequence[str] | None]:
    """Return the `packages` of `imports.request`: those that were requested first."""
    ordered = sorted(packages, key=lambda package: not package.requested)
    return {package.name: package.modules for package in ordered}


def judge_imports(
    packages: Sequence[Package],
    modules: Sequence[str],
    tutorials: Sequence[str],
    results: Mapping[str, object],
) -> list[CheckResult]:
    """Judge the imports of an image's packages and of further modules, and the tutorials of its recipes.

    `results` are those of `imports.try_imports`, from an image and so untrusted. Of a package that was
    requested Python must find the right version in the right directory, and all its modules must import; of
    other packages that is reported, and no failure.
    """
    judge = _ImportJudge(results)
    passed = [name for package in packages if package.requested for name in judge.package(package)]
    passed += [name for name in modules if name not in judge.tried and judge.module(name, f"`import {name}`")]
    further = [name for package in packages if not package.requested for name in judge.package(package)]
    checks = [CheckResult("PASS", IMPORTS, _some(passed), judge.all_import)] if passed else []
    if further:
        expected = f"what the requested packages need: {_some(further)}"
        checks.append(CheckResult("PASS", IMPORTS, expected, "all import"))
    checks += judge.checks
    if not passed and judge.nothing_to_import:
        checks.append(CheckResult("SKIP", IMPORTS, "modules to import", "none", judge.nothing_to_import))
    elif not checks:
        hint = "no Python package was requested"
        checks.append(CheckResult("SKIP", NO_PACKAGES, "modules to import", "none", hint))
    if tutorials:
        checks.append(_judge_tutorials(tutorials, results))
    return checks


def _judge_tutorials(tutorials: Sequence[str], results: Mapping[str, object]) -> CheckResult:
    scripts = _table(results.get("scripts"))
    reasons = {name: scripts.get(tutorial_file(name), "not tried") for name in tutorials}
    broken = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
    if broken:
        return CheckResult("FAIL", TUTORIALS, _some(tutorials), _some(broken), _some(broken))
    return CheckResult("PASS", TUTORIALS, _some(tutorials), "all run")


class _ImportJudge:
    """Judges imports, and collects what did not pass."""

    def __init__(self, results: Mapping[str, object]) -> None:
        self._modules, self._packages = _table(results.get("modules")), _table(results.get("packages"))
        self._unasked = _text(_table(results.get("search_path")).get("error"))
        self._nothing: list[str] = []
        self.tried: set[str] = set()
        self.checks: list[CheckResult] = []

    @property
    def nothing_to_import(self) -> str:
        """The packages of which recipe or spec says that nothing is to be imported; empty without any."""
        return f"nothing to import, as recipe or spec says: {_some(self._nothing)}" if self._nothing else ""

    @property
    def all_import(self) -> str:
        """The result of what passed."""
        return "; ".join(filter(None, ("all import", self.nothing_to_import)))

    def package(self, package: Package) -> list[str]:
        """Judge a package; return its modules that import, each from where the package lies."""
        described = _table(self._packages.get(package.name))
        label = f"{package.name} {package.version}"
        if not described:
            observed = self._unasked or "Python does not find it"
            self._wrong(package, label, observed, "the image does not have what was added to it")
            return []
        version, site = _text(described.get("version")), _text(described.get("site"))
        is_elsewhere = bool(package.sites) and site not in package.sites
        if is_elsewhere or version_key(version) != version_key(package.version):
            expected = f"{label} in {' or '.join(package.sites)}" if is_elsewhere else label
            observed = f"Python finds {package.name} {version} in {site}"
            self._wrong(package, expected, observed, _SHADOWED)
            return []
        names = [name for name in _list(described.get("modules")) if isinstance(name, str)][:_MOST_MODULES]
        own, plugins = (set(map(str, _list(described.get(key)))) for key in ("own", "plugins"))
        if not names:
            if package.modules is not None:
                self._nothing.append(package.name)
            else:
                self._skip(f"a module of {label}", "it has no Python modules")
            return []
        more = described.get("more")
        if isinstance(more, int) and more:
            self._skip(f"further modules of {label}", f"{more} were not tried")
        public = {name for name in names if not is_private(name)}
        required = {*names} if package.modules is not None or not public else public
        # A distribution without other modules is the plug-in itself.
        plugins = plugins & required if package.modules is None and public - plugins else set()
        return [
            name
            for name in names
            if self._of_package(
                name,
                package,
                label,
                site if name in own else "",
                required=name in required,
                plugin=name in plugins,
            )
        ]

    def module(self, name: str, expected: str, *, may_fail: str = "") -> bool:
        """Judge the import of one module; return whether it worked. `may_fail` is why a failure is none."""
        self.tried.add(name)
        result = _table(self._modules.get(name))
        error = result.get("error", "not tried") if result else "not tried"
        if error is None:
            return True
        reason = _text(error)
        absent = set(_ABSENT_LIBRARY.findall(reason))
        if absent and absent <= DRIVER_SONAMES:
            libraries = ", ".join(sorted(absent))
            self._skip(expected, f"needs {libraries}, which the driver of a host brings", reason)
        elif may_fail:
            self._skip(expected, reason, may_fail)
        else:
            self.checks.append(CheckResult("FAIL", IMPORTS, expected, reason, _IMPORTS_HINT))
        return False

    def _of_package(
        self, name: str, package: Package, label: str, site: str, *, required: bool, plugin: bool
    ) -> bool:
        """Judge the import of a module, which lies below `site`; empty for anywhere."""
        expected = f"`import {name}` ({label})"
        may_fail = "" if required else "it is private: modules of its package may do without it"
        error = _text(_table(self._modules.get(name)).get("error"))
        if plugin and error.startswith("ModuleNotFoundError:"):
            may_fail = "it is a plug-in, in a directory that packages share, of a program that is not there"
        if not package.requested:
            may_fail = "it was not requested: another package needs it, perhaps for a part"
        if not self.module(name, expected, may_fail=may_fail):
            return False
        file = _text(_table(self._modules[name]).get("file"))
        if not site or file.startswith(f"{site}/"):
            return True
        if file in ("built-in", "frozen") or _STANDARD_LIBRARY.search(file):
            self._skip(expected, f"Python has a module of this name itself: {file}")
            return False
        self._wrong(package, f"{expected} from {site}", file or "an unknown file", _SHADOWED)
        return False

    def _wrong(self, package: Package, expected: str, observed: str, hint: str) -> None:
        status = "FAIL" if package.requested else "SKIP"
        self.checks.append(CheckResult(status, IMPORTS, expected, observed, hint))

    def _skip(self, expected: str, observed: str, hint: str = "") -> None:
        self.checks.append(CheckResult("SKIP", IMPORTS, expected, observed, hint))


def version_key(version: str) -> tuple[object, ...]:
    """Return what equal versions (PEP 440) have in common, however they are spelled."""
    public, _, local = version.strip().lower().removeprefix("v").partition("+")
    public = re.sub(r"-([0-9]+)$", r".post\1", public)
    words = [_SAME_WORDS.get(word, word) for word in re.findall(r"[0-9]+|[a-z]+", public)]
    parts: list[object] = [int(word) if word.isdigit() else word for word in words]
    release = next((index for index, part in enumerate(parts) if isinstance(part, str)), len(parts))
    while release > 1 and parts[release - 1] == 0:
        release -= 1
        del parts[release]
    return (*parts, "+", *re.findall(r"[0-9a-z]+", local))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def relative_difference(value: object, reference: object) -> float | None:
    """Return max|value - reference| / max|reference| over numbers or lists of them.

    None if they are not finite numbers or differ in length. Relative to the
    largest element, because elements near zero carry the rounding of the large ones.
    """
    left, right = _numbers(value), _numbers(reference)
    if not right or len(left) != len(right):
        return None
    worst = max(abs(number - right[place]) for place, number in enumerate(left))
    scale = max(abs(number) for number in right)
    if worst == 0.0:
        return 0.0
    return worst / scale if scale > 0.0 else math.inf


def _numbers(value: object) -> list[float]:
    """Return a number, or the numbers of a list; empty if one of them is not a finite number."""
    numbers = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, (int, float)) or abs(item) > sys.float_info.max:
            return []
        numbers.append(float(item))
    return [] if any(math.isnan(number) for number in numbers) else numbers


def _short(value: object) -> str:
    return "nothing" if value is None else json.dumps(value)[:80]


def _some(items: Iterable[object], *, most: int = 6) -> str:
    words = [str(item)[:160] for item in items]
    return ",".join(words) if len(words) <= most else ",".join([*words[: most - 2], "…", words[-1]])
