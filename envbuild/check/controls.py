"""Negative controls: a spoiled copy of a job runs in the image, and the judge must see it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.check import run
from envbuild.check.findings import Finding
from envbuild.check.judge import Job
from envbuild.check.trial import Trial, try_job
from envbuild.errors import RequestError
from envbuild.image.model import JOBS
from envbuild.spec.recipe import Control
from envbuild.system.apptainer import Bind

# A margin of a few times the tolerance would be luck.
BY_FAR = 1000
# Of one run of a spoiled job, wall clock.
LIMIT_S = 120.0

_SINGLETONS = """\
import os
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI")):
        del os.environ[name]
"""
# Alone, and each with an address of its own to publish: the ranks share a directory of results.
_RECLUSES = (
    _SINGLETONS
    + """\
import envbuild_job, pathlib, tempfile
own = pathlib.Path(tempfile.mkdtemp())
envbuild_job.publish = lambda name, text: (own / name).write_text(text)
envbuild_job.await_published = lambda name, **_: (own / name).read_text()
"""
)
_ALONE = {None: "", "singletons": _SINGLETONS, "recluses": _RECLUSES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoiled:
    """A control of a recipe, and the job's text that it spoils.

    Attributes
    ----------
    recipe : str
        Whose job it is.
    """

    recipe: str
    control: Control
    original: str

    @property
    def name(self) -> str:
        """``jax/train: fewer steps``."""
        return f"{self.recipe}/{self.control.job.removesuffix('.py')}: {self.control.name}"

    def text(self) -> str:
        """Return the spoiled job.

        Raises
        ------
        ValueError
            It does not fit the job.
        """
        return _ALONE[self.control.alone] + self.control.before + self.control.changed(self.original)

    def job_ids(self) -> frozenset[str]:
        """Return the jobs that must fail: several may start one file."""
        return frozenset(check.removeprefix("D0/").partition("/")[0] for check in self.control.fails)


def jobs_of(subject: run.Subject, spoiled: Spoiled) -> list[Job]:
    """Return the jobs of an image that a control is for; none where the image lacks what it needs."""
    if not set(spoiled.control.needs) <= subject.manifest.recipes.keys():
        return []
    return [
        job
        for job in subject.jobs()
        if (job.recipe, job.file) == (spoiled.recipe, spoiled.control.job) and job.id in spoiled.job_ids()
    ]


def overlooked(
    subject: run.Subject, spoiled: Spoiled, *, ranks: int = 2, limit_s: float = LIMIT_S
) -> list[str]:
    """Run a control; return what the judge should have said and did not: nothing where all is well.

    Parameters
    ----------
    ranks : int
        Processes to start (count).
    limit_s : float
        Wall-clock limit of one run in seconds.

    Raises
    ------
    RequestError
        The image does not hold its job, or nothing can start it here.
    """
    found = jobs_of(subject, spoiled)
    if len(found) != 1:
        raise RequestError(
            f"the image has {len(found)} jobs that `{spoiled.name}` spoils, not one",
            hint="name an image of the recipe whose controls these are, in the job's variant",
        )
    (job,) = found
    trial = try_text(subject, job, spoiled.text(), ranks=ranks, limit_s=limit_s)
    return missed_by(trial, job, spoiled.control)


def missed_by(trial: Trial, job: Job, control: Control) -> list[str]:
    """Return what the judge should have said of a spoiled job and did not. Pure."""
    failed = {finding.id: finding for finding in trial.findings if finding.status == "FAIL"}
    tolerances = job.tolerances()
    missed = [f"{check} did not fail" for check in control.fails if check not in failed]
    for check, finding in failed.items():
        if check in tolerances and finding.observed.startswith("difference="):
            distance = float(finding.observed.removeprefix("difference="))
            if not distance > BY_FAR * tolerances[check]:
                missed.append(f"{check} failed by {distance:g} only")
    return [*missed, *_evidence(trial.findings, trial.output)] if missed else []


def _evidence(findings: Sequence[Finding], output: str) -> list[str]:
    return [*(finding.line() for finding in findings), output]


def try_text(subject: run.Subject, job: Job, text: str, *, ranks: int, limit_s: float) -> Trial:
    """Run a job with another text in its place, and judge it.

    Raises
    ------
    RequestError
        Nothing can start its ranks here.
    """
    launcher = run.launcher_of(subject, job.launcher)
    if launcher is None:
        raise RequestError(
            f"nothing here starts the ranks of `{job.id}`", hint="`envbuild doctor test` says what is missing"
        )
    with tempfile.TemporaryDirectory(prefix="envbuild-control-") as name:
        replaced = Path(name) / "job.py"
        replaced.write_text(text)
        bind = Bind(source=replaced, target=f"{JOBS}/{job.recipe}/{job.file}")
        launch = run.launch_with(subject, launcher, binds=[bind])
        return try_job(job, ranks=ranks, limit_s=limit_s, launch=launch)
