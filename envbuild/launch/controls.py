"""Negative controls: a job with a deliberate error runs in the image, and the judge must notice it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.jobs.judge import JOBS, Job
from envbuild.jobs.run import JobResult, ranks_on_gpus
from envbuild.launch.launchers import Shape
from envbuild.launch.start import Container, own_launcher, run_image_job
from envbuild.spec.recipe import Control, VerifyJob
from envbuild.system.apptainer import Bind

# A margin of a few times the tolerance would be luck.
BY_FAR = 1000
# Wall-clock limit of one run of a control.
LIMIT_S = 120.0
# Processes that a control starts.
RANKS = 2
EVERY_RANK_ALONE = "every rank alone"
# For Python 2.7, too. A rank that believes to be alone must not meet others by the texts that they publish.
_ALONE = """\
import os, envbuild_job
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI")):
        del os.environ[name]
if "RANK" in os.environ:
    os.environ.update(RANK="0", WORLD_SIZE="1")
own = {}
envbuild_job.publish = own.__setitem__
envbuild_job.await_published = lambda name, timeout_s=0: own[name]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutatedJob:
    """A control, and the text of the job that it changes."""

    recipe: str
    control: Control
    original: str

    @property
    def name(self) -> str:
        """``jax.train: gradients not added``."""
        return f"{self.control.job_id}: {self.control.name}"

    def text(self) -> str:
        """Return the changed job; ValueError if the control does not fit the job."""
        return self.control.before + self.control.changed(self.original)


def every_rank_alone(recipe: str, job: VerifyJob, original: str) -> MutatedJob:
    """Return the control that every job has: each rank believes to be the only one."""
    control = Control(name=EVERY_RANK_ALONE, job=job.file, fails=(f"{job.id}/ranks",), before=_ALONE)
    return MutatedJob(recipe=recipe, control=control, original=original)


def job_of(container: Container, mutated: MutatedJob) -> Job | None:
    """Return the job of an image that a control changes; None if image or machine lack something for it."""
    control = mutated.control
    if not set(control.needs) <= container.runnable.recipes.keys():
        return None
    place = (mutated.recipe, control.job, control.job_id)
    job = next((job for job in container.jobs if (job.recipe, job.file, job.id) == place), None)
    least = RANKS if control.name == EVERY_RANK_ALONE else 1
    return job if job is not None and ranks_on_gpus(job, RANKS, container.gpus) >= least else None


def undetected(container: Container, job: Job, mutated: MutatedJob) -> list[str]:
    """Run the control of a job; return the failures that the judge should have reported and did not.

    RequestError: nothing here can start the job.
    """
    ranks = ranks_on_gpus(job, RANKS, container.gpus)
    result = run_changed_job(container, job, mutated.text(), ranks=ranks, limit_s=LIMIT_S)
    return missed_by(result, job, mutated.control)


def missed_by(result: JobResult, job: Job, control: Control) -> list[str]:
    """Return the failures of a control that the judge did not report. Pure."""
    failed = {check.id: check for check in result.checks if check.status == "FAIL"}
    tolerances = job.tolerances()
    missed = [f"{name} did not fail" for name in control.fails if name not in failed]
    for name, check in failed.items():
        if name in tolerances and check.observed.startswith("difference="):
            distance = float(check.observed.removeprefix("difference="))
            if not distance > BY_FAR * tolerances[name]:
                missed.append(f"{name} failed by {distance:g} only")
    if control.name == EVERY_RANK_ALONE and not missed:
        # A job that only crashes proves nothing: each process must report itself as rank 0 of 1.
        observed = failed[f"{job.id}/ranks"].observed
        if observed != f"ranks={','.join('0' * RANKS)} size=1 processes={RANKS}":
            missed.append(f"{job.id}/ranks failed, but the ranks did not run alone: {observed}")
    return [*missed, *(check.line() for check in result.checks), result.output] if missed else []


def run_changed_job(container: Container, job: Job, text: str, *, ranks: int, limit_s: float) -> JobResult:
    """Run a job with another text, and judge it; RequestError if nothing can start its ranks here."""
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
        return run_image_job(container, launcher, job, shape=Shape(ranks=ranks), limit_s=limit_s)
