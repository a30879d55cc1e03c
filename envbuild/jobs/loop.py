"""The jobs of a test, one after the other: the loop that `envbuild test` and `apptainer test` share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from envbuild.jobs.judge import Job, blas_of, judge_mapped, no_fitting_jobs, no_jobs
from envbuild.jobs.rank_reports import Reports
from envbuild.jobs.report import CheckResult, Sections
from envbuild.jobs.run import JobResult


class JobHost(Protocol):
    """What starts the ranks of jobs: outside of an image, or inside."""

    def skipped(self, job: Job) -> CheckResult | None:
        """Return why a job cannot run; None if it can."""

    def run(self, job: Job) -> JobResult:
        """Run a job and judge it."""


@dataclass(frozen=True)
class JobResults:
    """The results of the jobs of a test."""

    by_job: Mapping[str, JobResult] = field(default_factory=dict)
    """Job id → result, of the jobs that ran."""
    skipped: bool = False
    """Whether there were jobs that could not run."""

    def reports(self) -> Iterator[Reports]:
        """Yield the reports of all runs."""
        for result in self.by_job.values():
            yield from result.reports


def run_jobs(jobs: Iterable[Job], host: JobHost, sections: Sections) -> JobResults:
    """Run jobs, and add a section for each."""
    results: dict[str, JobResult] = {}
    skipped = False
    for job in jobs:
        check = host.skipped(job)
        result = JobResult(checks=(check,)) if check is not None else host.run(job)
        if check is None:
            results[job.id] = result
        skipped = skipped or check is not None
        sections.add(job.id, result.checks, result.output, result.measured)
    return JobResults(by_job=results, skipped=skipped)


def add_processes(
    sections: Sections, results: JobResults, *, further: Iterable[CheckResult] = (), why_none: str = ""
) -> None:
    """Add what the processes of all jobs loaded, with `further` checks; or that no job ran, and why."""
    if results.by_job:
        # Of each job the run on all ranks.
        blas = [
            loaded
            for job, result in results.by_job.items()
            for reports in result.reports[:1]
            for loaded in blas_of(job, reports)
        ]
        sections.add("processes", [judge_mapped(list(results.reports())), *further], blas=blas)
    elif results.skipped:
        sections.add("jobs", [no_fitting_jobs()])
    else:
        sections.add("jobs", [no_jobs(why_none) if why_none else no_jobs()])
