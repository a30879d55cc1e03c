"""Negative controls: a job with a deliberate error runs in the image, and the judge must notice it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.jobs.judge import JOBS, Job
from envbuild.jobs.run import JobResult, ranks_on_gpus
from envbuild.launch.launchers import Shape
from envbuild.launch.start import Container, own_launcher, run_image_job
from envbuild.spec.job import Control
from envbuild.spec.job_file import with_fault
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
    # The agent of torchrun serves each of its ranks.
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        os.environ.pop("MASTER_ADDR", None)
own = {}
envbuild_job.publish = own.__setitem__
envbuild_job.await_published = lambda name, timeout_s=0: own[name]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutatedJob:
    """A job with one deliberate fault."""

    job: Job
    fault: str
    """Name of the control, unique among those of the job."""
    control: Control
    files: Mapping[str, str]
    """File under ``verify/`` → its own text: of the job, and of the modules there that it imports."""

    @property
    def name(self) -> str:
        """``jax.train: no averaging``."""
        return f"{self.job.id}: {self.fault}"

    @property
    def fails(self) -> tuple[str, ...]:
        """The checks that must fail, by their ids in a report."""
        return tuple(f"{self.job.id}/{check}" for check in self.control.fails)

    def texts(self) -> dict[str, str]:
        """Return the changed files: name → text."""
        if self.fault == EVERY_RANK_ALONE:
            return {self.job.file: _ALONE + self.files[self.job.file]}
        changed = {name: with_fault(text, self.fault) for name, text in self.files.items()}
        return {name: text for name, text in changed.items() if text != self.files[name]}


def every_rank_alone(job: Job, files: Mapping[str, str]) -> MutatedJob:
    """Return the control that every job has: each rank runs as rank 0 of 1."""
    control = Control(fails=("ranks",), least_ranks=RANKS)
    return MutatedJob(job=job, fault=EVERY_RANK_ALONE, control=control, files=files)


def job_of(container: Container, mutated: MutatedJob) -> Job | None:
    """Return the job of an image that a control changes; None if image or machine lack something for it."""
    if not set(mutated.control.needs) <= container.runnable.recipes.keys():
        return None
    identity = (mutated.job.recipe, mutated.job.file, mutated.job.id)
    job = next((job for job in container.jobs if (job.recipe, job.file, job.id) == identity), None)
    is_enough = job is not None and ranks_on_gpus(job, RANKS, container.gpus) >= mutated.control.least_ranks
    return job if is_enough else None


def undetected(container: Container, job: Job, mutated: MutatedJob) -> list[str]:
    """Run the control of a job; return the failures that the judge should have reported and did not.

    RequestError: nothing here can start the job.
    """
    ranks = ranks_on_gpus(job, RANKS, container.gpus)
    changed = replace(job, environment={**job.environment, **mutated.control.environment})
    result = run_changed_job(container, changed, mutated.texts(), ranks=ranks, limit_s=LIMIT_S)
    return missed_by(result, mutated)


def missed_by(result: JobResult, mutated: MutatedJob) -> list[str]:
    """Return the failures of a control that the judge did not report. Pure."""
    job = mutated.job
    failed = {check.id: check for check in result.checks if check.status == "FAIL"}
    tolerances = job.tolerances()
    missed = [f"{name} did not fail" for name in mutated.fails if name not in failed]
    for name, check in failed.items():
        if name in tolerances and check.observed.startswith("difference="):
            distance = float(check.observed.removeprefix("difference="))
            if not distance > BY_FAR * tolerances[name]:
                missed.append(f"{name} failed by {distance:g} only")
    if mutated.fault == EVERY_RANK_ALONE and not missed:
        # A job that only crashes proves nothing: each process must report itself as rank 0 of 1.
        observed = failed[f"{job.id}/ranks"].observed
        if observed != f"ranks={','.join('0' * RANKS)} size=1 processes={RANKS}":
            missed.append(f"{job.id}/ranks failed, but the ranks did not run alone: {observed}")
    return [*missed, *(check.line() for check in result.checks), result.output] if missed else []


def run_changed_job(
    container: Container, job: Job, texts: Mapping[str, str], *, ranks: int, limit_s: float
) -> JobResult:
    """Run a job with other texts of its files, and judge it; RequestError if nothing here starts its ranks.

    `texts`: file under ``verify/`` → text.
    """
    launcher = own_launcher(container, job.launcher)
    if launcher is None:
        raise RequestError(
            f"nothing here starts the ranks of `{job.id}`", hint="`envbuild doctor test` says what is missing"
        )
    with tempfile.TemporaryDirectory(prefix="envbuild-control-") as name:
        binds = []
        for file, text in texts.items():
            changed = Path(name) / file
            changed.write_text(text)
            binds.append(Bind(source=changed, target=f"{JOBS}/{job.recipe}/{file}"))
        container = replace(container, binds=(*container.binds, *binds))
        return run_image_job(container, launcher, job, shape=Shape(ranks=ranks), limit_s=limit_s)
