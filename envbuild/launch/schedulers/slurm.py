"""Slurm: the job that this runs in, a batch script, jobs that are submitted, and what srun answers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from envbuild.errors import MachineError, RequestError
from envbuild.image.runnable import Runnable
from envbuild.jobs.report import CheckResult
from envbuild.launch.context import judge_pmi, running_mpi, visible_variables
from envbuild.launch.schedulers import (
    Allocation,
    Array,
    JobState,
    QueuedTask,
    Work,
    count_of,
    variables_of_job,
)
from envbuild.site.probe import mpi_types
from envbuild.spec.site import SiteMpi
from envbuild.system import host, process
from envbuild.system.fingerprint import HostFingerprint
from envbuild.system.process import Finished

_ASKED_WITH = "`--partition`, `--account`, `--time` and `--slurm` are what it was asked with"
HINT_LIMITS = f"`sinfo -l` shows the limits; {_ASKED_WITH}"
_ASK_S = 30.0
_SUBMIT_S = 60.0
_HINT_CLUSTER = "is this a machine of the cluster? Load Slurm's module"
_HINT_PMI_TYPES = (
    "is this a machine of the cluster? a site file may name the types (`scheduler: {mpi_types: […]}`)"
)
# The reason of a task that conflicts with its partition, until the scheduler says how.
_NOT_JUDGED = "PartitionConfig"
_LOOKS, _LOOK_EVERY_S = 10, 0.5
_QUEUE_COLUMNS = 5  # that `queued` asks for
_GPU_OPTION = re.compile(r"--(gpus|gres)")
_LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT"}
_NO_CONTROLLER = re.compile(r"configuration source|fetch config|[Uu]nable to contact|[Cc]onnection refused")
# Reasons for which Slurm keeps a job that never starts as it is asked for. PartitionNodeLimit is not one of
# them: it also stands for nodes that are down.
_NEVER_STARTS = {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}


class Slurm:
    """Slurm."""

    name = "slurm"
    title = "Slurm"
    launcher = "srun"
    starts_ranks = True

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job; one that was asked for nodes alone has a task on each, as srun starts them."""
        if "SLURM_JOB_ID" not in environ:
            return None
        nodes = count_of(environ, "SLURM_JOB_NUM_NODES") or 1
        tasks = count_of(environ, "SLURM_NTASKS") or nodes * (count_of(environ, "SLURM_NTASKS_PER_NODE") or 1)
        queue = environ.get("SLURM_JOB_PARTITION", "")
        return Allocation(scheduler=self.name, nodes=nodes, tasks=tasks, queue=queue)

    def script(self, work: Work) -> str:
        """Return a batch script, which runs its arguments on the ranks."""
        options = [f"--job-name={work.name}", *job_options(work)]
        lines = [
            "#!/bin/sh",
            *work.head,
            "# sbatch [OPTION ...] FILE [COMMAND [ARGUMENT ...]]"
            if work.command
            else "# sbatch --nodes=N --time=MINUTES [OPTION ...] FILE COMMAND [ARGUMENT ...]",
            *(f"#SBATCH {option}" for option in options),
            "",
            f'[ "$#" != 0 ] || set -- {shlex.join(work.command)}'
            if work.command
            else ': "${1:?sbatch FILE COMMAND [ARGUMENT ...]}"',
            # A job that was asked for nodes alone has one task on each.
            "_eb_nodes=${SLURM_JOB_NUM_NODES:-1}",
            '_eb_ranks="${SLURM_NTASKS:-$((_eb_nodes * ${SLURM_NTASKS_PER_NODE:-1}))}"',
            "",
            *work.body,
        ]
        return "\n".join(lines) + "\n"

    def submit(
        self, script: str, options: Sequence[str], outputs: Sequence[Path], variables: Mapping[str, str]
    ) -> str:
        """Submit a script to sbatch; of two options that contradict each other the last one counts."""
        files = [f"--output={outputs[0]}", f"--error={outputs[1]}"]
        return _id_of(_sbatch(["--job-name=envbuild", *options, *files], script, variables))

    def state(self, job: str) -> JobState:
        """Ask the controller, which serves all users: not often."""
        argv = ["scontrol", "--oneliner", "show", "job", job]
        done = process.run(argv, env=dict(os.environ), timeout_s=_SUBMIT_S)
        facts = dict(re.findall(r"(\w+)=(\S*)", done.stdout)) if done.ok else {}
        state, reason = facts.get("JobState", ""), facts.get("Reason", "None")
        waits = state == "PENDING" and reason != "None"
        never = waits and reason in _NEVER_STARTS
        more = f"`scontrol show job {job}` and `sacct -j {job}` say more"
        more = "`--time` asks for more" if state == "TIMEOUT" else more
        return JobState(
            state=state,
            code=int(facts.get("ExitCode", "0:0").partition(":")[0] or 0),
            nodes=facts.get("NodeList", ""),
            reason=reason if waits else "",
            has_ended=bool(state) and state not in _LIVE,
            ended_itself=state in {"COMPLETED", "FAILED"},
            never_starts=never,
            hint=HINT_LIMITS if never else more,
        )

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        process.run(["scancel", job], env=dict(os.environ), timeout_s=_SUBMIT_S)

    def task_of(self, environ: Mapping[str, str]) -> tuple[str, int] | None:
        """Read SLURM_ARRAY_JOB_ID, the id of the whole array, and SLURM_ARRAY_TASK_ID."""
        job, index = (environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
        return (job, int(index)) if job.isdecimal() and index.isdecimal() else None

    def check(self, array: Array) -> None:
        """Ask sbatch, without the dependencies."""
        _sbatch(["--test-only", *_array_options(array)], array.script, array.variables)

    def submit_array(self, array: Array) -> str:
        """Submit an array to sbatch: an array that another one waits for may also fail."""
        after = [f"--dependency=afterany:{':'.join(array.after)}"] if array.after else []
        return _id_of(_sbatch([*_array_options(array), *after], array.script, array.variables))

    def most_tasks(self) -> int:
        """Ask the controller for MaxArraySize, which is one more than the highest index."""
        done = process.run(["scontrol", "show", "config"], env=dict(os.environ), timeout_s=_SUBMIT_S)
        most = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, flags=re.MULTILINE)
        return max(int(most[1]), 1) if most and done.ok else 1

    def queued(self, name: str) -> tuple[QueuedTask, ...]:
        """Ask the controller, which serves all users: not often."""
        argv = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--name={name}"]
        argv.append("--format=%F|%K|%T|%r|%N")
        done = process.run(argv, env=dict(os.environ), timeout_s=_SUBMIT_S)
        if not done.ok:
            problem = f"no controller of Slurm answers: {done.last_lines(1)}"
            raise MachineError(problem, hint=_HINT_CLUSTER)
        rows = [line.split("|") for line in done.stdout.splitlines()]
        return tuple(
            QueuedTask(
                job=job,
                index=int(index),
                state=state,
                reason=reason if state == "PENDING" and reason != "None" else "",
                node=node,
            )
            for job, index, state, reason, node in (row for row in rows if len(row) == _QUEUE_COLUMNS)
            if index.isdecimal()
        )

    def stuck(self, name: str) -> QueuedTask | None:
        """Ask squeue, for a few seconds while the scheduler has not looked at a task yet."""
        for _ in range(_LOOKS):
            tasks = self.queued(name)
            never = next((task for task in tasks if task.reason in _NEVER_STARTS), None)
            if never is not None or not any(task.reason == _NOT_JUDGED for task in tasks):
                return never
            process.pause(_LOOK_EVERY_S)
        return None

    def ended(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        """Ask the accounting, which not every cluster has."""
        if not jobs or shutil.which("sacct") is None:
            return {}
        argv = ["sacct", "--noheader", "--parsable2", "--allocations"]
        argv += ["--format=JobID,State", f"--jobs={','.join(jobs)}"]
        done = process.run(argv, env=dict(os.environ), timeout_s=_SUBMIT_S)
        rows = re.findall(r"^(\d+)_(\d+)\|(\w+)", done.stdout, flags=re.MULTILINE) if done.ok else []
        return {(job, int(index)): state for job, index, state in rows if state not in _LIVE}


def _array_options(array: Array) -> list[str]:
    most = f"%{array.at_once}" if array.at_once else ""
    # Slurm replaces `%` in the names of files.
    logs = str(array.logs).replace("%", "%%")
    return [
        *array.options,
        # After the user's: by this name its tasks are found again.
        f"--job-name={array.name}",
        f"--array=0-{array.tasks - 1}{most}",
        f"--export={','.join(sorted(array.variables))}",
        f"--chdir={array.directory}",
        f"--output={logs}/%A_%a.log",
    ]


def _sbatch(options: Sequence[str], script: str, variables: Mapping[str, str]) -> Finished:
    """Run sbatch; raises as `Submitter.submit`."""
    argv = ["sbatch", "--parsable", *options]
    done = process.run(argv, env={**os.environ, **variables}, timeout_s=_SUBMIT_S, stdin=script.encode())
    if done.ok:
        return done
    if _NO_CONTROLLER.search(done.stderr):
        problem = f"no controller of Slurm answers: {done.last_lines(1)}"
        raise MachineError(problem, hint=_HINT_CLUSTER)
    raise RequestError(f"Slurm refuses the job: {done.last_lines(2)}", hint=_ASKED_WITH)


def _id_of(done: Finished) -> str:
    """Return the id that sbatch answers."""
    if (number := re.match(r"\d+", done.stdout)) is None:
        raise RequestError(f"Slurm refuses the job: {done.last_lines(2)}", hint=_ASKED_WITH)
    return number[0]


SCHEDULER = Slurm()


def job_options(work: Work) -> list[str]:
    """Return the options of sbatch that work asks for, before those of a site."""
    options = [f"--comment={work.comment}"] if work.comment else []
    options += [f"--nodes={work.nodes}"] if work.nodes else []
    options += [f"--ntasks-per-node={work.ranks_per_node}"] if work.ranks_per_node else []
    options += [f"--ntasks={work.ranks}"] if work.ranks and not (work.nodes and work.ranks_per_node) else []
    options += [f"--time={work.time_min}"] if work.time_min else []
    if work.gpus_per_node and not any(map(_GPU_OPTION.match, work.options)):
        options.append(f"--gpus-per-node={work.gpus_per_node}")
    return [*options, *work.options]


class SlurmHere:
    """The Slurm of this machine: each question is asked once."""

    name = Slurm.name

    @cached_property
    def version(self) -> str:
        """The version that srun reports (``slurm 24.05.1``), else ``slurm``; MachineError without srun."""
        return _ask("--version").stdout.strip() or "slurm"

    def pmi_types(self) -> tuple[str, ...]:
        """Return the types that ``srun --mpi=list`` lists. MachineError: there is no srun, or no answer."""
        return self._pmi_types

    @cached_property
    def _pmi_types(self) -> tuple[str, ...]:
        done = _ask("--mpi=list")
        if done.timed_out:
            problem = f"`srun --mpi=list` did not answer within {_ASK_S:g} s"
            raise MachineError(problem, hint=_HINT_PMI_TYPES)
        offered = mpi_types(done.output) if done.ok else ()
        if not offered:
            why = f": {done.last_lines(1)}" if done.last_lines(1) else ""
            raise MachineError(f"`srun --mpi=list` names nothing{why}", hint=_HINT_PMI_TYPES)
        return offered

    @cached_property
    def default_pmi(self) -> str:
        """The type that srun uses without ``--mpi``; empty if unknown."""
        chosen = os.environ.get("SLURM_MPI_TYPE", "")
        if chosen:
            return chosen
        try:
            env = host.environment(extra=variables_of_job(("SLURM_",)))
            done = process.run(["scontrol", "show", "config"], env=env, timeout_s=_ASK_S)
        except MachineError:
            return ""
        default = re.search(r"^MpiDefault\s*=\s*(\S+)", done.stdout, flags=re.MULTILINE)
        return default[1] if default and done.ok else ""

    @cached_property
    def partitions(self) -> dict[str, str]:
        """The partitions, each with the GPUs of a node (``gpu:4``), else empty.

        If nodes of a partition differ, the first entry with GPUs counts. MachineError: sinfo names none.
        """
        done = process.run(["sinfo", "--noheader", "--format=%R %G"], env=dict(os.environ), timeout_s=_ASK_S)
        rows = re.findall(r"^(\S+) +(\S+)$", done.stdout, re.MULTILINE) if done.ok else []
        if not rows:
            why = f": {done.last_lines(1)}" if done.last_lines(1) else ""
            raise MachineError(f"`sinfo` names no partition{why}", hint=_HINT_CLUSTER)
        partitions: dict[str, str] = {}
        for name, resources in sorted(rows):
            gpus = re.search(r"(?:^|,)(gpu(?::[A-Za-z0-9_.-]+)?:[0-9]+)", resources)
            partitions[name] = partitions.get(name) or (gpus[1] if gpus else "")
        return partitions

    def run_on_node(
        self, words: Sequence[str], *, queue: str, options: Sequence[str], timeout_s: float
    ) -> Finished:
        """Run a command by srun as one task on a node of a partition, with all GPUs of the node.

        With PMIx's variables, if srun offers it. `options` of srun follow: of two that contradict each other
        the last one counts.
        """
        gpus = "" if any(map(_GPU_OPTION.match, options)) else self.partitions.get(queue, "")
        asked = [f"--gres={gpus}"] if gpus else []
        pmi = ["--mpi=pmix"] if "pmix" in self.pmi_types() else []
        shape = ["--job-name=envbuild", f"--partition={queue}", "--nodes=1", "--ntasks=1", *asked, *pmi]
        return process.run(["srun", *shape, *options, *words], env=dict(os.environ), timeout_s=timeout_s)

    def pmi_checks(self, runnable: Runnable, host_mpi: SiteMpi | None) -> list[CheckResult]:
        """Judge the types for the MPI that ranks would run on: `host_mpi`, if given.

        MachineError: there is no srun, or it does not answer.
        """
        offered = self.pmi_types()
        version = runnable.recipes.get(runnable.mpi, "")
        family, version = running_mpi(runnable.mpi_family, version, host_mpi)
        default = self.default_pmi if family else ""
        return judge_pmi(family, version, host=host_mpi is not None, offered=offered, default=default)

    def add_to(self, fingerprint: HostFingerprint) -> HostFingerprint:
        """Return a host's fingerprint with Slurm's version and PMI types, if it belongs to a cluster."""
        if shutil.which("srun") is None:
            return fingerprint
        try:
            return fingerprint.with_fact("slurm", f"{self.version}; {', '.join(self.pmi_types())}")
        except MachineError:
            return fingerprint


def _ask(question: str) -> Finished:
    # With the user's environment: SLURM_CONF and modules select the cluster.
    env = {name: os.environ[name] for name in visible_variables(tuple(os.environ))}
    return process.run(["srun", question], env=env, timeout_s=_ASK_S)
