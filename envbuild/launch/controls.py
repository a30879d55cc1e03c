"""Negative controls: a job with a deliberate error runs in the image, and the judge must notice it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.jobs.judge import JOBS, Job
from envbuild.jobs.report import Finding
from envbuild.jobs.run import JobResult
from envbuild.launch.start import Container, own_launcher, run_image_job
from envbuild.spec.recipe import Control
from envbuild.system.apptainer import Bind

# A margin of a few times the tolerance would be luck.
BY_FAR = 1000
# Wall-clock limit of one run of a control.
LIMIT_S = 120.0

_SINGLETONS = """\
import os
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI")):
        del os.environ[name]
"""
# Alone, and each publishes its own address: without it the ranks would meet in the results directory.
_NO_RENDEZVOUS = (
    _SINGLETONS
    + """\
import envbuild_job, pathlib, tempfile
own = pathlib.Path(tempfile.mkdtemp())
envbuild_job.publish = lambda name, text: (own / name).write_text(text)
envbuild_job.await_published = lambda name, **_: (own / name).read_text()
"""
)
_ALONE = {None: "", "singletons": _SINGLETONS, "recluses": _NO_RENDEZVOUS}


@dataclass(frozen=True, slots=True, kw_only=True)
class MutatedJob:
    """A control of a recipe, and the text of the job that it changes."""

    recipe: str
    control: Control
    original: str

    @property
    def name(self) -> str:
        """``jax/train: fewer steps``."""
        return f"{self.recipe}/{self.control.job.removesuffix('.py')}: {self.control.name}"

    def text(self) -> str:
        """Return the changed job.

        Raises
        ------
        ValueError
            The control does not fit the job.
        """
        return _ALONE[self.control.alone] + self.control.before + self.control.changed(self.original)

    def job_ids(self) -> frozenset[str]:
        """Return the jobs that must fail: several may start one file."""
        return frozenset(check.partition("/")[0] for check in self.control.fails)


def jobs_of(container: Container, mutated: MutatedJob) -> list[Job]:
    """Return the jobs of an image that a control is for; none if the image lacks a needed recipe."""
    if not set(mutated.control.needs) <= container.manifest.recipes.keys():
        return []
    return [
        job
        for job in container.jobs
        if (job.recipe, job.file) == (mutated.recipe, mutated.control.job) and job.id in mutated.job_ids()
    ]


def undetected(
    container: Container, mutated: MutatedJob, *, ranks: int = 2, limit_s: float = LIMIT_S
) -> list[str]:
    """Run a control; return the failures that the judge should have reported and did not.

    Parameters
    ----------
    ranks : int
        Processes to start (count).
    limit_s : float
        Wall-clock limit of one run in seconds.

    Raises
    ------
    RequestError
        The image does not hold the job, or nothing can start it here.
    """
    jobs = jobs_of(container, mutated)
    if len(jobs) != 1:
        raise RequestError(
            f"`{mutated.name}` changes one job, and the image has {len(jobs)} that fit",
            hint="name an image of the recipe that these controls belong to, in the job's variant",
        )
    result = run_changed_job(container, jobs[0], mutated.text(), ranks=ranks, limit_s=limit_s)
    return missed_by(result, jobs[0], mutated.control)


def missed_by(result: JobResult, job: Job, control: Control) -> list[str]:
    """Return the failures of a control that the judge did not report. Pure."""
    failed = {finding.id: finding for finding in result.findings if finding.status == "FAIL"}
    tolerances = job.tolerances()
    missed = [f"{check} did not fail" for check in control.fails if check not in failed]
    for check, finding in failed.items():
        if check in tolerances and finding.observed.startswith("difference="):
            distance = float(finding.observed.removeprefix("difference="))
            if not distance > BY_FAR * tolerances[check]:
                missed.append(f"{check} failed by {distance:g} only")
    return [*missed, *_evidence(result.findings, result.output)] if missed else []


def _evidence(findings: Sequence[Finding], output: str) -> list[str]:
    return [*(finding.line() for finding in findings), output]


def run_changed_job(container: Container, job: Job, text: str, *, ranks: int, limit_s: float) -> JobResult:
    """Run a job with another text in its place, and judge it.

    Raises
    ------
    RequestError
        Nothing can start its ranks here.
    """
    launcher = own_launcher(container, job.launcher)
    if launcher is None:
        raise RequestError(
            f"nothing here starts the ranks of `{job.id}`", hint="`envbuild doctor test` says what is missing"
        )
    with tempfile.TemporaryDirectory(prefix="envbuild-control-") as name:
        changed = Path(name) / "job.py"
        changed.write_text(text)
        bind = Bind(source=changed, target=f"{JOBS}/{job.recipe}/{job.file}")
        container = replace(container, binds=(*container.binds, bind))
        return run_image_job(container, launcher, job, ranks=ranks, limit_s=limit_s)
