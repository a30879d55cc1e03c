"""Run a command of envbuild as one job of Slurm: submit it, follow it, pass on what it writes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import MachineError, RequestError
from envbuild.events import Emit, Note
from envbuild.launch.start import results_directory
from envbuild.spec.site import Site
from envbuild.system import process
from envbuild.system.process import Finished

_ASK_S = 60.0
_LOOK_S = 0.5
# How many looks at the output to one question to Slurm: its controller serves all users.
_LOOKS = 6
# Questions in a row that Slurm may leave unanswered: five minutes, as for a restart of its controller.
_UNANSWERED = 100
_LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT"}
_ELSEWHERE = "is this a machine of the cluster? Load Slurm's module"
_NO_CONTROLLER = re.compile(r"configuration source|fetch config|[Uu]nable to contact|[Cc]onnection refused")
_ASKED_WITH = "`--partition`, `--account`, `--time` and `--slurm` are what it was asked with"
# Exit codes of a shell that cannot execute a program (POSIX, 2.8.2); no command of envbuild has them.
_NOT_STARTED = (126, 127)
# Reasons for which Slurm keeps a job that never starts as it is asked for. PartitionNodeLimit is not one of
# them: it also stands for nodes that are down.
_NEVER = {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}
_OTHERS = {"pbs": ("PBS_JOBID", "qsub"), "lsf": ("LSB_JOBID", "bsub")}


def job_options(site: Site | None, *, for_gpus: bool) -> list[str]:
    """Return the options of a site's jobs, and for an image for GPUs one rank for each GPU of a node."""
    scheduler, gpus = (site.scheduler, site.gpus) if site is not None else (None, None)
    of_site = scheduler.sbatch_options if scheduler is not None else ()
    options = []
    if for_gpus and gpus is not None and gpus.count:
        options.append(f"--ntasks-per-node={gpus.count}")
        if not any(option.startswith(("--gpus", "--gres")) for option in of_site):
            options.append(f"--gpus-per-node={gpus.count}")
    return [*options, *of_site]


def check_scheduler(site: Site | None) -> None:
    """Check that there is Slurm to submit to: RequestError for another scheduler, MachineError for none."""
    scheduler = site.scheduler.name if site is not None and site.scheduler is not None else ""
    if scheduler in ("", "slurm") and shutil.which("sbatch"):
        return
    others = (
        name
        for name, (variable, program) in _OTHERS.items()
        if variable in os.environ or shutil.which(program)
    )
    other = scheduler if scheduler not in ("", "slurm") else next(others, "")
    if other:
        raise RequestError(
            f"envbuild submits jobs to Slurm alone, and here is {other.upper()}",
            hint="in a job of yours, `envbuild test IMAGE --mpi host --site SITE` starts the ranks by"
            " the site's `mpi.launcher`",
        )
    raise MachineError("there is no sbatch on PATH", hint=_ELSEWHERE)


def run_in_job(words: Sequence[str], options: Sequence[str], *, variables: dict[str, str], emit: Emit) -> int:
    """Run a command in a job of Slurm, in this directory; return its exit code.

    `options` are those of sbatch; of two that contradict each other the last one counts.
    Its two streams become ours. An interrupt cancels the job. RequestError: Slurm refuses the job.
    MachineError: it ended otherwise than by the command's own exit.
    """
    env = {**os.environ, **variables}
    if not os.access(Path.cwd(), os.W_OK | os.X_OK):
        raise RequestError(
            f"nothing can be written in `{Path.cwd()}`, where the job would leave its output",
            hint="start it in a directory of yours that all nodes share",
        )
    with results_directory(Path.cwd()) as directory:
        outputs = [directory / "stdout", directory / "stderr"]
        for path in outputs:
            path.touch()
        job = _submit(words, options, outputs, env)
        emit(Note(text=f"Slurm job {job}: submitted"))
        try:
            with outputs[0].open("rb") as stdout, outputs[1].open("rb") as stderr:
                state, code, nodes = _follow(
                    job, [(stdout, sys.stdout.buffer), (stderr, sys.stderr.buffer)], env, emit
                )
        except BaseException:
            process.run(["scancel", job], env=env, timeout_s=_ASK_S)
            raise
    if state in {"COMPLETED", "FAILED"}:
        if code in _NOT_STARTED:
            hint = "install envbuild in a directory that all nodes share, or on each of them"
            raise MachineError(f"Slurm job {job}: {nodes or 'its node'} cannot start `{words[0]}`", hint=hint)
        return code
    hint = (
        "`--time` asks for more"
        if state == "TIMEOUT"
        else f"`scontrol show job {job}` and `sacct -j {job}` say more"
    )
    raise MachineError(f"Slurm job {job} ended as {state}", hint=hint)


def _submit(
    words: Sequence[str], options: Sequence[str], outputs: Sequence[Path], env: dict[str, str]
) -> str:
    # With `sbatch` the script is Slurm's to copy; its words are quoted for the shell that runs it.
    script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
    files = [f"--output={outputs[0]}", f"--error={outputs[1]}"]
    argv = ["sbatch", "--parsable", "--job-name=envbuild", *options, *files]
    done = process.run(argv, env=env, timeout_s=_ASK_S, stdin=script.encode())
    if (number := re.match(r"\d+", done.stdout)) is None or not done.ok:
        if _NO_CONTROLLER.search(done.stderr):
            raise MachineError(f"no controller of Slurm answers: {done.last_lines(1)}", hint=_ELSEWHERE)
        raise RequestError(f"Slurm refuses the job: {done.last_lines(2)}", hint=_ASKED_WITH)
    return number[0]


def _follow(
    job: str, streams: Sequence[tuple[BinaryIO, BinaryIO]], env: dict[str, str], emit: Emit
) -> tuple[str, int, str]:
    """Pass on a job's output until it has ended; return its state, exit code and nodes."""
    shown, unanswered = "", 0
    while True:
        done = process.run(["scontrol", "--oneliner", "show", "job", job], env=env, timeout_s=_ASK_S)
        state, code, nodes, reason = _state(done)
        unanswered = 0 if state else unanswered + 1
        if unanswered > _UNANSWERED:
            problem = f"Slurm does not say what has become of job {job}: {done.last_lines(1)}"
            raise MachineError(problem, hint=f"`sacct -j {job}` may know")
        words = _in_words(state, nodes, reason)
        if state and words != shown:
            emit(Note(text=f"Slurm job {job}: {words}"))
            shown = words
        if state == "PENDING" and reason in _NEVER:
            raise RequestError(
                f"Slurm job {job} cannot start as it is asked for: {reason}",
                hint=f"`sinfo -l` shows the limits; {_ASKED_WITH}",
            )
        ended = bool(state) and state not in _LIVE
        for _ in range(_LOOKS):
            for source, target in streams:
                target.write(source.read())
                target.flush()
            if ended:
                return state, code, nodes
            process.pause(_LOOK_S)


def _state(done: Finished) -> tuple[str, int, str, str]:
    """Return a job's state (empty if Slurm does not know it), exit code, nodes, and why it waits."""
    facts = dict(re.findall(r"(\w+)=(\S*)", done.stdout)) if done.ok else {}
    code = int(facts.get("ExitCode", "0:0").partition(":")[0] or 0)
    return facts.get("JobState", ""), code, facts.get("NodeList", ""), facts.get("Reason", "None")


def _in_words(state: str, nodes: str, reason: str) -> str:
    """Return ``waiting (Priority)`` or ``running on n[1-2]``."""
    if state == "PENDING":
        return "waiting" if reason == "None" else f"waiting ({reason})"
    return f"{state.lower()} on {nodes}" if nodes else state.lower()
