"""One mini job, tried: run it on all ranks, read what they reported, judge.

Standard library only, Python 3.9 or newer: travels in every image. On the host
and in the image the same code runs; only `launch` differs.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.check.facts import Reports, rank_outputs, ranks_that_said, read_reports
from envbuild.check.findings import Finding
from envbuild.check.judge import Ended, Job, judge_job, skip_job
from envbuild.system.removal import remove

# (command line of one rank, ranks, private directory, variables, limit in seconds); the launch
# itself tells the ranks where they see the directory (ENVBUILD_RESULTS).
Launch = Callable[[Sequence[str], int, Path, Mapping[str, str], float], Ended]


@dataclass(frozen=True)
class Trial:
    """What came of one mini job.

    Attributes
    ----------
    findings : tuple of Finding
        D0 first, then the job's own.
    reports : tuple of Reports
        Of each run: on all ranks, and on one where that was asked for.
    output : str
        The last lines of launcher and ranks where something did not pass; else empty.
    """

    findings: tuple[Finding, ...]
    reports: tuple[Reports, ...] = ()
    output: str = ""


def try_job(
    job: Job, *, ranks: int, limit_s: float, launch: Launch | None, shared: Path | None = None
) -> Trial:
    """Run a mini job and judge it; without a launcher it is skipped, which is no pass.

    Parameters
    ----------
    ranks : int
        Processes to start (count).
    limit_s : float
        Wall-clock limit of one run in seconds.
    launch : callable or None
        What starts the ranks.
    shared : Path, optional
        Directory that ranks on all nodes see, where their private one is made; absent, all are on this host.
    """
    if launch is None:
        return Trial(findings=(skip_job(job, ranks),))
    try:
        command = job.command()
    except ValueError as error:
        return Trial(findings=(Finding("FAIL", f"{job.id}/end", "exit code 0", "not started", str(error)),))
    reports, ended, output = _run(job, command, ranks, limit_s, launch, shared)
    runs, single = [reports], None
    if job.compare_with_single and not ended.timed_out:
        single, _, single_output = _run(job, command, 1, limit_s, launch, shared)
        output = f"{output}\n--- on one rank\n{single_output}"
        runs.append(single)
    findings = judge_job(job, ranks, reports, ended, single)
    good = all(finding.status == "PASS" for finding in findings)
    return Trial(findings=tuple(findings), reports=tuple(runs), output="" if good else output.strip("\n"))


def _run(
    job: Job, command: Sequence[str], ranks: int, limit_s: float, launch: Launch, shared: Path | None
) -> tuple[Reports, Ended, str]:
    token = secrets.token_hex(16)
    variables = {
        **job.environment,
        "ENVBUILD_TOKEN": token,
        # Each rank writes where it stands before its time is up, and we end it.
        "ENVBUILD_DUMP_AFTER_S": f"{0.8 * limit_s:.3f}",
        "OMP_NUM_THREADS": "1",
    }
    with _private_directory(shared) as directory:
        ended = launch(command, ranks, directory, variables, limit_s)
        reports = replace(read_reports(directory, token), said=ranks_that_said(directory, job.says))
        output = "\n".join(text for text in (_tail(ended.output), rank_outputs(directory)) if text)
    return reports, ended, output


@contextlib.contextmanager
def _private_directory(shared: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="envbuild-test-", dir=shared))
    try:
        yield path
    finally:
        # What a job leaves there may resist removal; that is no verdict on the image.
        with contextlib.suppress(OSError):
            remove(path)


def _tail(text: str, *, lines: int = 20) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])
