"""An image's job with another text in its place, and whether the judge sees what was spoiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild.check import run
from envbuild.check.judge import Ended, Job
from envbuild.check.trial import Trial, try_job
from envbuild.image.model import JOBS
from envbuild.image.sif import read_manifest
from envbuild.system import apptainer as runtime
from envbuild.system import host, process
from envbuild.system.apptainer import Bind
from tests.recipes.controls import CONTROLS
from tests.recipes.spoil import Control

# A margin of a few times the tolerance would be luck.
BY_FAR = 1000


def subject_of(image: Path) -> run.Subject:
    """Return an image as what is tested."""
    return run.Subject(image=image, manifest=read_manifest(image), apptainer=runtime.find())


def controls_of(subject: run.Subject) -> list[Control]:
    """Return the negative controls of the jobs that an image holds."""
    jobs = {(job.recipe, job.file) for job in subject.jobs()}
    return [control for control in CONTROLS if (control.recipe, control.file) in jobs]


def job_of(subject: run.Subject, control: Control) -> Job:
    """Return the job of an image that a control spoils; several may start one file."""
    failing = {check.removeprefix("D0/").partition("/")[0] for check in control.fails}
    (found,) = [
        job
        for job in subject.jobs()
        if (job.recipe, job.file) == (control.recipe, control.file) and job.id in failing
    ]
    return found


def try_text(
    subject: run.Subject, job: Job, text: str, directory: Path, *, ranks: int = 2, limit_s: float = 120.0
) -> Trial:
    """Run a job with another text in its place, and judge it.

    Parameters
    ----------
    directory : Path
        Receives the text.
    """
    replaced = directory / "job.py"
    replaced.write_text(text)
    launcher = run.launcher_of(subject, job.launcher)
    assert launcher is not None

    def launch(
        command: Sequence[str], ranks: int, results: Path, variables: Mapping[str, str], limit_s: float
    ) -> Ended:
        binds = [
            Bind(source=results, target=run.RESULTS, writable=True),
            Bind(source=replaced, target=f"{JOBS}/{job.recipe}/{job.file}"),
        ]
        env = {**variables, **launcher.environment(), "ENVBUILD_RESULTS": run.RESULTS}
        words = subject.apptainer.command(subject.image, [], binds=binds, env=env, cwd=run.RESULTS)
        done = process.run(launcher.command(words, command, ranks), env=host.environment(), timeout_s=limit_s)
        return Ended(code=done.code, timed_out=done.timed_out, limit_s=limit_s, output=done.output)

    return try_job(job, ranks=ranks, limit_s=limit_s, launch=launch)


def overlooked(subject: run.Subject, control: Control, directory: Path) -> list[str]:
    """Run a control; return what the judge should have said and did not: nothing where all is well."""
    job = job_of(subject, control)
    found = try_text(subject, job, control.text(), directory)
    failed = {finding.id: finding for finding in found.findings if finding.status == "FAIL"}
    missed = [f"{check} did not fail" for check in control.fails if check not in failed]
    for check, finding in failed.items():
        if check.endswith("-as-one-rank") and finding.observed.startswith("difference="):
            name = check.rpartition("/")[2].removesuffix("-as-one-rank")
            distance = float(finding.observed.removeprefix("difference="))
            if not distance > BY_FAR * job.compare_with_single[name]:
                missed.append(f"{check} failed by {distance:g} only")
    return missed if not missed else [*missed, *(finding.line() for finding in found.findings), found.output]
