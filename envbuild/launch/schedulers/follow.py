"""Run a command of envbuild as one job of a scheduler: submit it, follow it, pass on what it writes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import MachineError, RequestError
from envbuild.events import Emit, Note
from envbuild.launch.schedulers import JobState, Submitter
from envbuild.launch.schedulers.slurm import SCHEDULER
from envbuild.launch.start import results_directory
from envbuild.spec.site import Site
from envbuild.system import process

_READ_EVERY_S = 0.5
# How many looks at the output to one question to the scheduler: its controller serves all users.
_READS_PER_QUERY = 6
# Questions in a row that the scheduler may leave unanswered: five minutes, as for a restart.
_UNANSWERED = 100
# Exit codes of a shell that cannot execute a program (POSIX, 2.8.2); no command of envbuild has them.
_NOT_STARTED = (126, 127)
_OTHERS = {"pbs": ("PBS_JOBID", "qsub"), "lsf": ("LSB_JOBID", "bsub")}


def submitter(site: Site | None) -> Submitter:
    """Return the scheduler to submit to: RequestError for one of no use here, MachineError for none."""
    stated = site.scheduler.name if site is not None and site.scheduler is not None else ""
    if stated in ("", "slurm") and shutil.which("sbatch"):
        return SCHEDULER
    others = (
        name
        for name, (variable, program) in _OTHERS.items()
        if variable in os.environ or shutil.which(program)
    )
    other = stated if stated not in ("", "slurm") else next(others, "")
    if other:
        raise RequestError(
            f"envbuild submits jobs only to Slurm; this machine has {other.upper()}",
            hint="in a job of yours, `envbuild test IMAGE --mpi host --site SITE` starts the ranks by"
            " the site's `mpi.launcher`",
        )
    hint = "is this a machine of the cluster? Load Slurm's module"
    raise MachineError("there is no sbatch on PATH", hint=hint)


def run_in_job(
    scheduler: Submitter,
    words: Sequence[str],
    options: Sequence[str],
    *,
    variables: dict[str, str],
    emit: Emit,
) -> int:
    """Run a command in a job, in this directory and with further variables; return its exit code.

    Its two streams become ours. An interrupt cancels the job. RequestError: the scheduler refuses the job.
    MachineError: it ended otherwise than by the command's own exit.
    """
    title = scheduler.title
    if not os.access(Path.cwd(), os.W_OK | os.X_OK):
        raise RequestError(
            f"nothing can be written in `{Path.cwd()}`, where the job would leave its output",
            hint="start it in a directory of yours that all nodes share",
        )
    with results_directory(Path.cwd()) as directory:
        outputs = [directory / "stdout", directory / "stderr"]
        for path in outputs:
            path.touch()
        job = scheduler.submit(f"#!/bin/sh\nexec {shlex.join(words)}\n", options, outputs, variables)
        emit(Note(text=f"{title} job {job}: submitted"))
        try:
            with outputs[0].open("rb") as stdout, outputs[1].open("rb") as stderr:
                streams = [(stdout, sys.stdout.buffer), (stderr, sys.stderr.buffer)]
                ended = _follow(scheduler, job, streams, emit)
        except BaseException:
            scheduler.cancel(job)
            raise
    if ended.ended_itself:
        if ended.code in _NOT_STARTED:
            hint = "install envbuild in a directory that all nodes share, or on each of them"
            node = ended.nodes or "its node"
            raise MachineError(f"{title} job {job}: {node} cannot start `{words[0]}`", hint=hint)
        return ended.code
    raise MachineError(f"{title} job {job} ended as {ended.state}", hint=ended.hint)


def _follow(
    scheduler: Submitter, job: str, streams: Sequence[tuple[BinaryIO, BinaryIO]], emit: Emit
) -> JobState:
    """Pass on a job's output until it has ended; return its last state."""
    shown, unanswered = "", 0
    while True:
        current = scheduler.state(job)
        unanswered = 0 if current.state else unanswered + 1
        if unanswered > _UNANSWERED:
            problem = f"{scheduler.title} does not say what has become of job {job}"
            raise MachineError(problem, hint=current.hint)
        words = _in_words(current)
        if current.state and words != shown:
            emit(Note(text=f"{scheduler.title} job {job}: {words}"))
            shown = words
        if current.never_starts:
            raise RequestError(
                f"{scheduler.title} job {job} cannot start as it is asked for: {current.reason}",
                hint=current.hint,
            )
        for _ in range(_READS_PER_QUERY):
            for source, target in streams:
                target.write(source.read())
                target.flush()
            if current.has_ended:
                return current
            process.pause(_READ_EVERY_S)


def _in_words(job: JobState) -> str:
    """Return ``waiting (Priority)`` or ``running on n[1-2]``."""
    if job.state == "PENDING":
        return f"waiting ({job.reason})" if job.reason else "waiting"
    return f"{job.state.lower()} on {job.nodes}" if job.nodes else job.state.lower()
