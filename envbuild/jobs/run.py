"""Run one job on all its ranks, read what they report, and judge it.

On the host and in the image the same code runs; only the function that starts ranks differs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.jobs.judge import Job, LaunchResult, judge_job, measured_by
from envbuild.jobs.rank_reports import Reports, rank_outputs, ranks_that_said, read_reports
from envbuild.jobs.report import CheckResult, Measured

# (command line of one rank, ranks, private directory, variables, limit in seconds). It sets
# ENVBUILD_RESULTS to the path under which the ranks see the directory.
StartRanks = Callable[[Sequence[str], int, Path, Mapping[str, str], float], LaunchResult]


@dataclass(frozen=True)
class JobResult:
    """The result of one job."""

    checks: tuple[CheckResult, ...]
    """Of the ranks first, then of the values."""
    reports: tuple[Reports, ...] = ()
    """Of each run: on all ranks, and on one if the job is compared with it."""
    output: str = ""
    """The last lines of launcher and ranks if something did not pass; else empty."""
    measured: tuple[Measured, ...] = ()
    """What the run on all ranks measured."""


def ranks_on_gpus(job: Job, ranks: int, gpus: int) -> int:
    """Return how many ranks of a job a machine starts: no more than it has GPUs for, if it needs them."""
    return min(ranks, gpus // job.gpus_per_rank) if job.gpus_per_rank else ranks


def run_job(
    job: Job,
    start: StartRanks,
    directory: Path,
    *,
    ranks: int,
    limit_s: float,
    threads: int = 1,
    token: str = "",
) -> JobResult:
    """Run a job and judge it; `limit_s` limits each run, `threads` those of each rank (OMP_NUM_THREADS).

    `directory` is empty and private, and all ranks see it; the caller removes it. `token` is in all
    reports of the job, and is chosen here if it is empty.
    """
    try:
        command = job.command()
    except ValueError as error:
        check = CheckResult("FAIL", f"{job.id}/end", "exit code 0", "not started", str(error))
        return JobResult(checks=(check,))

    def run(name: str, count: int) -> tuple[Reports, LaunchResult, str]:
        results = directory / name
        results.mkdir(mode=0o700)
        return _run(job, command, count, limit_s, threads, start, results, token or secrets.token_hex(16))

    reports, ended, output = run("all-ranks", ranks)
    runs, single = [reports], None
    if job.compare_with_single and not ended.timed_out:
        single, _, single_output = run("one-rank", 1)
        output = f"{output}\n--- on one rank\n{single_output}"
        runs.append(single)
    checks = judge_job(job, ranks, reports, ended, single)
    passed = all(check.status == "PASS" for check in checks)
    return JobResult(
        checks=tuple(checks),
        reports=tuple(runs),
        output="" if passed else output.strip("\n"),
        measured=measured_by(job, ranks, reports),
    )


def _run(
    job: Job,
    command: Sequence[str],
    ranks: int,
    limit_s: float,
    threads: int,
    start: StartRanks,
    results: Path,
    token: str,
) -> tuple[Reports, LaunchResult, str]:
    variables = {
        **job.environment,
        "ENVBUILD_TOKEN": token,
        # Each rank writes where it stands shortly before the limit ends it.
        "ENVBUILD_DUMP_AFTER_S": f"{0.8 * limit_s:.3f}",
        "ENVBUILD_GPUS_PER_RANK": str(job.gpus_per_rank),
        "ENVBUILD_STARTED": f"{time.time():.6f}",
        "OMP_NUM_THREADS": str(threads),
    }
    ended = start(command, ranks, results, variables, limit_s)
    reports = replace(read_reports(results, token), said=ranks_that_said(results, job.says))
    output = "\n".join(text for text in (_tail(ended.output), rank_outputs(results)) if text)
    return reports, ended, output


def _tail(text: str, *, lines: int = 20) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])
