"""Ask the scheduler: the PMI types and the environment of srun, the tasks and nodes of a job."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from envbuild.errors import EnvbuildError, MachineError
from envbuild.image.runnable import Runnable
from envbuild.jobs.report import CheckResult
from envbuild.launch.launchers import LaunchContext, judge_pmi, running_mpi, visible_variables
from envbuild.site.probe import mpi_types
from envbuild.spec.site import Site, SiteMpi
from envbuild.system import host, process
from envbuild.system.files import read_input
from envbuild.system.fingerprint import HostFingerprint
from envbuild.system.process import Finished

_ASK_S = 30.0
_NAME_THEM = (
    "is this a machine of the cluster? a site file may name the types (`scheduler: {mpi_types: […]}`)"
)
# Where PBS, LSF, Grid Engine and OAR name the hosts of a job, one a line.
_NODE_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "OAR_NODEFILE")
_MAX_NODES_BYTES = 1 << 22


def with_offer(context: LaunchContext) -> LaunchContext:
    """Return a context with the types that srun lists, if they matter and the site does not list them all.

    MachineError: neither srun nor the site names the types.
    """
    if not context.srun or context.mpi_types_complete:
        return context
    try:
        return replace(context, offered=_offered())
    except MachineError:
        if context.mpi_types:
            return context
        raise


def other_nodes(site: Site | None) -> str | None:
    """Return why there may be other nodes, which ranks started here do not reach; None without a sign."""
    for name in _NODE_FILES:
        nodes = _lines(os.environ.get(name, ""))
        if len(nodes) > 1:
            return f"the job has {len(nodes)} nodes ({name}), and nothing of it starts ranks on the others"
    scheduler = site.scheduler if site else None
    if scheduler is not None:
        return f"the site starts jobs by {scheduler.name}, by which envbuild starts nothing"
    if site is not None and site.fabric is not None:
        return f"the site `{site.name}` has a fabric, and names no scheduler"
    return None


def _lines(path: str) -> set[str]:
    """Return the first words of a file's lines: the hosts that a scheduler lists."""
    try:
        text = read_input(Path(path), limit_bytes=_MAX_NODES_BYTES).decode(errors="replace") if path else ""
    except EnvbuildError:
        return set()
    return {line.split()[0] for line in text.splitlines() if line.split()}


def in_slurm_job() -> bool:
    """Whether this runs in a job of Slurm."""
    return "SLURM_JOB_ID" in os.environ


def nodes_here() -> int:
    """Return the nodes of the job of Slurm that this runs in (count); 1 without one."""
    return (_count("SLURM_JOB_NUM_NODES") or 1) if in_slurm_job() else 1


def queue_of_job() -> str:
    """Return the partition of Slurm that this job runs in; empty outside of a job."""
    return os.environ.get("SLURM_JOB_PARTITION", "")


def allocated() -> int | None:
    """Return the tasks of the job of Slurm that this runs in (count); None for fewer than two.

    Of a job that was asked for nodes alone, it is one for each node, as srun starts them.
    """
    if not in_slurm_job():
        return None
    count = _count("SLURM_NTASKS") or nodes_here() * (_count("SLURM_NTASKS_PER_NODE") or 1)
    return count if count > 1 else None


def _count(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def slurm_offers() -> tuple[tuple[str, ...], str]:
    """Return the types that ``srun --mpi`` takes here, and its default, empty if unknown.

    MachineError: there is no srun, or it does not answer.
    """
    offered = _offered()
    chosen = os.environ.get("SLURM_MPI_TYPE", "")
    if chosen:
        return offered, chosen
    try:
        done = process.run(["scontrol", "show", "config"], env=environment_of_srun(), timeout_s=_ASK_S)
    except MachineError:
        return offered, ""
    default = re.search(r"^MpiDefault\s*=\s*(\S+)", done.stdout, flags=re.MULTILINE)
    return offered, default[1] if default and done.ok else ""


def _offered() -> tuple[str, ...]:
    """Return the types that ``srun --mpi=list`` lists."""
    done = _ask("--mpi=list")
    if done.timed_out:
        raise MachineError(f"`srun --mpi=list` did not answer within {_ASK_S:g} s", hint=_NAME_THEM)
    offered = mpi_types(done.output) if done.ok else ()
    if not offered:
        why = f": {done.last_lines(1)}" if done.last_lines(1) else ""
        raise MachineError(f"`srun --mpi=list` names nothing{why}", hint=_NAME_THEM)
    return offered


def pmi_checks(runnable: Runnable, host_mpi: SiteMpi | None) -> list[CheckResult]:
    """Ask srun for its PMI types, and judge them for the MPI that ranks would run on: `host_mpi`, if given.

    MachineError: there is no srun, or it does not answer.
    """
    offered, default = slurm_offers()
    version = runnable.recipes.get(runnable.mpi, "")
    family, version = running_mpi(runnable.mpi_family, version, host_mpi)
    return judge_pmi(family, version, host=host_mpi is not None, offered=offered, default=default)


def slurm_version() -> str:
    """Return the version that srun reports (``slurm 24.05.1``), else ``slurm``; MachineError without srun."""
    return _ask("--version").stdout.strip() or "slurm"


def with_slurm(host: HostFingerprint) -> HostFingerprint:
    """Return a host's fingerprint with the version of Slurm and its PMI types, if it belongs to a cluster."""
    if shutil.which("srun") is None:
        return host
    try:
        return host.with_fact("slurm", f"{slurm_version()}; {', '.join(_offered())}")
    except MachineError:
        return host


def environment_of_srun() -> dict[str, str]:
    """Return the environment of srun: cluster and job, and nothing else of the user's."""
    names = [name for name in os.environ if name.startswith("SLURM_")]
    return host.environment(extra={name: os.environ[name] for name in names})


def _ask(question: str) -> Finished:
    # With the user's environment: SLURM_CONF and modules select the cluster.
    env = {name: os.environ[name] for name in visible_variables(tuple(os.environ))}
    return process.run(["srun", question], env=env, timeout_s=_ASK_S)
