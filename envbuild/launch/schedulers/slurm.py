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
from envbuild.launch.schedulers import Allocation, JobState, Work, count_of, variables_of_job
from envbuild.site.probe import mpi_types
from envbuild.spec.site import SiteMpi
from envbuild.system import host, process
from envbuild.system.fingerprint import HostFingerprint
from envbuild.system.process import Finished

_ASKED_WITH = "`--partition`, `--account`, `--time` and `--slurm` are what it was asked with"
_ASK_S = 30.0
_SUBMIT_S = 60.0
_HINT_PMI_TYPES = (
    "is this a machine of the cluster? a site file may name the types (`scheduler: {mpi_types: […]}`)"
)
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
        argv = ["sbatch", "--parsable", "--job-name=envbuild", *options, *files]
        env = {**os.environ, **variables}
        done = process.run(argv, env=env, timeout_s=_SUBMIT_S, stdin=script.encode())
        if (number := re.match(r"\d+", done.stdout)) is None or not done.ok:
            if _NO_CONTROLLER.search(done.stderr):
                hint = "is this a machine of the cluster? Load Slurm's module"
                raise MachineError(f"no controller of Slurm answers: {done.last_lines(1)}", hint=hint)
            raise RequestError(f"Slurm refuses the job: {done.last_lines(2)}", hint=_ASKED_WITH)
        return number[0]

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
            hint=f"`sinfo -l` shows the limits; {_ASKED_WITH}" if never else more,
        )

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        process.run(["scancel", job], env=dict(os.environ), timeout_s=_SUBMIT_S)


SCHEDULER = Slurm()


def job_options(work: Work) -> list[str]:
    """Return the options of sbatch that work asks for, before those of a site."""
    options = [f"--nodes={work.nodes}"] if work.nodes else []
    options += [f"--ntasks-per-node={work.ranks_per_node}"] if work.ranks_per_node else []
    options += [f"--ntasks={work.ranks}"] if work.ranks and not (work.nodes and work.ranks_per_node) else []
    options += [f"--time={work.time_min}"] if work.time_min else []
    if work.gpus_per_node and not any(option.startswith(("--gpus", "--gres")) for option in work.options):
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
