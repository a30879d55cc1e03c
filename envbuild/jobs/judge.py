"""Judge jobs from the facts that their ranks report. Pure; a job's own "PASS" is never asked for."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from envbuild.jobs.arithmetic import evaluate
from envbuild.jobs.rank_reports import Reports, number_of, values_of
from envbuild.jobs.report import NO_JOBS, CheckResult

IMPORTS = "image.imports"
SEE_RANKS = "see the `ranks` check of this job"
# Where an image keeps the files that its jobs need.
JOBS = "/.envbuild/jobs"
_FAMILIES = {"libmpi": r"libmpi(_abi)?\.so", "libnccl": r"libnccl\.so", "libcudart": r"libcudart[-.]"}


@dataclass(frozen=True)
class Job:
    """A job of a recipe; `envbuild.spec.recipe.VerifyJob` documents the fields."""

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
    own_mpi: bool = False

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Job:
        """Return a job from a manifest's JSON; unknown keys are ignored."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})  # type: ignore[arg-type]

    def tolerances(self) -> dict[str, float]:
        """Return the findings that compare numbers, each with its allowed relative difference."""
        single = {f"{self.id}/{name}-as-one-rank": limit for name, limit in self.compare_with_single.items()}
        reported = {
            f"{self.id}/{name}-as-{other}": limit
            for name, others in self.compare_with_reported.items()
            for other, limit in others.items()
        }
        return {**single, **reported}

    def command(self) -> list[str]:
        """Return the command line of one rank inside the image.

        Raises
        ------
        ValueError
            Recipe or file are not plain names.
        """
        for name in (self.recipe, self.file):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"`{name}` is not a plain name")
        return ["python", "-s", f"{JOBS}/envbuild_job.py", f"{JOBS}/{self.recipe}/{self.file}"]


@dataclass(frozen=True)
class LaunchResult:
    """How the processes of one launch ended."""

    code: int
    """Exit code of the launcher."""
    timed_out: bool = False
    """Whether they were ended after `limit_s` seconds."""
    limit_s: float = 0.0
    output: str = ""
    """What the launcher wrote."""


def judge_job(
    job: Job, ranks: int, reports: Reports, ended: LaunchResult, single: Reports | None = None
) -> list[CheckResult]:
    """Judge one job from what its ranks reported.

    Parameters
    ----------
    ranks : int
        Processes that the launcher was asked for.
    reports, ended
        Of the run on all ranks.
    single : Reports, optional
        Of the run on one rank, if the job is compared with it.
    """
    findings = [judge_ranks(job.id, ranks, reports), _judge_end(job, ended)]
    findings += [
        _judge_expected(job, name, text, ranks, reports) for name, text in sorted(job.expect.items())
    ]
    findings += [_judge_said(job, name, ranks, reports) for name in sorted(job.says)]
    findings += [_judge_same(job, name, ranks, reports) for name in job.same_on_all_ranks]
    alone = single or Reports()
    findings += [_judge_single(job, name, ranks, reports, alone) for name in sorted(job.compare_with_single)]
    for name, others in sorted(job.compare_with_reported.items()):
        findings += [_judge_reported(job, name, other, ranks, reports) for other in sorted(others)]
    return findings


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


def no_jobs() -> CheckResult:
    """Skip an image without jobs: it proves nothing."""
    hint = "the image carries no jobs: name an `mpi` or a framework in the spec"
    return CheckResult("SKIP", NO_JOBS, "at least one job", "none", hint)


def _judge_end(job: Job, ended: LaunchResult) -> CheckResult:
    observed = f"ended after {ended.limit_s:g} s" if ended.timed_out else f"exit code {ended.code}"
    good = ended.code == 0 and not ended.timed_out
    hint = "it hung: the output shows where each rank stood" if ended.timed_out else "the output says why"
    return CheckResult(
        "PASS" if good else "FAIL", f"{job.id}/end", "exit code 0", observed, "" if good else hint
    )


def _judge_expected(job: Job, name: str, expression: str, ranks: int, reports: Reports) -> CheckResult:
    check = f"{job.id}/{name}"
    # If no rank reported, the check of the ranks fails.
    hosts = len({report["host"] for report in reports.good}) or 1
    try:
        wanted = {rank: evaluate(expression, n=ranks, r=rank, h=hosts) for rank in range(ranks)}
    except ValueError as error:
        return CheckResult("FAIL", check, expression, "", f"the recipe's expression is wrong: {error}")
    distinct = sorted(set(wanted.values()))
    expected = _some(distinct)
    wrong = []
    for report in reports.good:
        rank, value = number_of(report, "rank"), values_of(report).get(name)
        # A rank that cannot be says nothing true; compare it with rank 0 so that it shows what it got.
        if type(value) not in (int, float) or value != wanted.get(rank, wanted[0]):
            wrong.append(f"{_short(value)} on rank {rank}")
    if wrong:
        return CheckResult("FAIL", check, expected, ", ".join(wrong[:4]), job.hint)
    return _unless_incomplete(check, expected, expected, ranks, reports)


def _judge_said(job: Job, name: str, ranks: int, reports: Reports) -> CheckResult:
    check = f"{job.id}/{name}"
    expected = f"every rank's log says {' or '.join(repr(text) for text in job.says[name])}"
    silent = sorted(set(range(ranks)) - reports.said.get(name, frozenset()))
    if silent:
        return CheckResult("FAIL", check, expected, f"not that of rank {_some(silent)}", job.hint)
    return _unless_incomplete(check, expected, "so it does", ranks, reports)


def _judge_same(job: Job, name: str, ranks: int, reports: Reports) -> CheckResult:
    check, values = f"{job.id}/{name}", reports.values(name)
    expected = "the same on all ranks"
    try:
        texts = sorted({json.dumps(value, sort_keys=True, allow_nan=False) for value in values})
    except ValueError:
        return CheckResult("FAIL", check, expected, "not a number", job.hint)
    if len(texts) > 1 or len(values) < len(reports.good):
        observed = (
            f"{len(texts)} different"
            if len(texts) > 1
            else f"{len(values)} of {len(reports.good)} reported it"
        )
        return CheckResult("FAIL", check, expected, observed, job.hint)
    return _unless_incomplete(check, expected, expected, ranks, reports)


def _judge_single(job: Job, name: str, ranks: int, reports: Reports, single: Reports) -> CheckResult:
    check = f"{job.id}/{name}-as-one-rank"
    alone = judge_ranks(job.id, 1, single)
    if alone.status != "PASS":
        problem = "the run on one rank gave no sound report"
        return CheckResult("FAIL", check, _at_most(job.tolerances()[check]), problem, alone.hint)
    reference = values_of(single.good[0]).get(name)
    differences = [relative_difference(values_of(report).get(name), reference) for report in reports.good]
    return _judge_differences(job, check, differences, ranks, reports)


def _judge_reported(job: Job, name: str, other: str, ranks: int, reports: Reports) -> CheckResult:
    reported = [values_of(report) for report in reports.good]
    differences = [relative_difference(values.get(name), values.get(other)) for values in reported]
    return _judge_differences(job, f"{job.id}/{name}-as-{other}", differences, ranks, reports)


def _judge_differences(
    job: Job, check: str, differences: Sequence[float | None], ranks: int, reports: Reports
) -> CheckResult:
    """Judge the difference on each rank that reported; None where there were no comparable numbers."""
    tolerance = job.tolerances()[check]
    known = [difference for difference in differences if difference is not None]
    if len(known) < len(differences):
        return CheckResult("FAIL", check, _at_most(tolerance), "no comparable numbers", job.hint)
    worst = max(known, default=0.0)
    observed = f"difference={worst:.1e}"
    if worst > tolerance:
        return CheckResult("FAIL", check, _at_most(tolerance), observed, job.hint)
    return _unless_incomplete(check, _at_most(tolerance), observed, ranks, reports)


def _at_most(tolerance: float) -> str:
    return f"difference<={tolerance:g}"


def _unless_incomplete(check: str, expected: str, observed: str, ranks: int, reports: Reports) -> CheckResult:
    """Return a pass; but what holds on fewer than N ranks was not examined."""
    if len(reports.good) == ranks:
        return CheckResult("PASS", check, expected, observed)
    observed = f"{len(reports.good)} of {ranks} ranks reported"
    return CheckResult("SKIP", check, expected, observed, SEE_RANKS)


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
        for family, pattern in _FAMILIES.items():
            of_family = sorted({path for path in paths if re.match(pattern, path.rpartition("/")[2])})
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


def judge_imports(modules: Sequence[str], results: Mapping[str, object]) -> CheckResult:
    """Judge that every module of an image imports.

    Parameters
    ----------
    results : mapping
        What `imports.try_imports` returned: module → None, or why it does not import.
    """
    reasons = {name: results.get(name, "not tried") for name in modules}
    broken = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
    if broken:
        return CheckResult("FAIL", IMPORTS, _some(modules), _some(broken), _some(broken))
    return CheckResult("PASS", IMPORTS, _some(modules) or "none", "all import")


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
