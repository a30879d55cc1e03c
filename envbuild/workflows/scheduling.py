"""What the scheduler here is asked before it starts an image's ranks."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from envbuild.check.launching import Situation, visible_variables
from envbuild.check.run import Subject
from envbuild.errors import EnvbuildError, MachineError
from envbuild.site.probe import mpi_types
from envbuild.spec.site import Site
from envbuild.system import host, process
from envbuild.system.files import read_input
from envbuild.system.process import Finished

_ASK_S = 30.0
_NAME_THEM = (
    "is this a machine of the cluster? a site file may name the types (`scheduler: {mpi_types: […]}`)"
)
# Where PBS, LSF, Grid Engine and OAR name the hosts of a job, one a line.
_NODE_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "OAR_NODEFILE")
_MAX_NODES_BYTES = 1 << 22


def situation(subject: Subject, site: Site | None, *, on_host_mpi: bool, srun: bool = False) -> Situation:
    """Return what decides how an image's ranks are started here, as far as nobody must be asked.

    Parameters
    ----------
    srun : bool
        Whether srun was asked for, in a job of Slurm or not.
    """
    manifest = subject.manifest
    return Situation(
        label=f"{manifest.name}/{manifest.version}",
        family=manifest.mpi_family,
        version=manifest.recipes.get(manifest.mpi, ""),
        site=site,
        on_host_mpi=on_host_mpi,
        srun=srun or "SLURM_JOB_ID" in os.environ,
        root=host.is_root(),
    )


def with_offer(known: Situation) -> Situation:
    """Return a situation with what srun says that it takes, where that matters and is not known.

    Raises
    ------
    MachineError
        What srun takes is told neither by it nor by the site.
    """
    if not known.by_scheduler or known.offer_is_whole:
        return known
    try:
        return replace(known, offered=_offered())
    except MachineError:
        if known.known_types:
            return known
        raise


def other_nodes(site: Site | None) -> str | None:
    """Return why there may be other nodes, which ranks started here do not reach; None for no sign of any."""
    for name in _NODE_FILES:
        nodes = _lines(os.environ.get(name, ""))
        if len(nodes) > 1:
            return f"the job has {len(nodes)} nodes ({name}), and nothing of it starts ranks on the others"
    scheduler = site.scheduler if site else None
    if scheduler is not None:
        return f"the site starts jobs by {scheduler.name}, which envbuild launches nothing by"
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


def allocated() -> int | None:
    """Return the tasks of the job of Slurm that this is in (count); None for fewer than two."""
    told = os.environ.get("SLURM_NTASKS", "")
    count = int(told) if "SLURM_JOB_ID" in os.environ and told.isdigit() else 0
    return count if count > 1 else None


def slurm_offers() -> tuple[tuple[str, ...], str]:
    """Return what ``srun --mpi`` takes here, and what it takes unless told; that empty where it is not known.

    Raises
    ------
    MachineError
        There is no srun, or it does not answer.
    """
    offered = _offered()
    chosen = os.environ.get("SLURM_MPI_TYPE", "")
    if chosen:
        return offered, chosen
    try:
        told = process.run(["scontrol", "show", "config"], env=environment_of_srun(), timeout_s=_ASK_S)
    except MachineError:
        return offered, ""
    default = re.search(r"^MpiDefault\s*=\s*(\S+)", told.stdout, flags=re.MULTILINE)
    return offered, default[1] if default and told.ok else ""


def _offered() -> tuple[str, ...]:
    """Return what ``srun --mpi`` takes, as it says itself."""
    done = _ask("--mpi=list")
    if done.timed_out:
        raise MachineError(f"`srun --mpi=list` did not answer within {_ASK_S:g} s", hint=_NAME_THEM)
    offered = mpi_types(done.output) if done.ok else ()
    if not offered:
        why = f": {done.last_lines(1)}" if done.last_lines(1) else ""
        raise MachineError(f"`srun --mpi=list` names nothing{why}", hint=_NAME_THEM)
    return offered


def slurm_version() -> str:
    """Return what srun says of itself: ``slurm 24.05.1``; ``slurm`` where it says nothing.

    Raises
    ------
    MachineError
        There is no srun.
    """
    return _ask("--version").stdout.strip() or "slurm"


def environment_of_srun() -> dict[str, str]:
    """Return the environment of srun: which cluster, which job, and nothing else of the user's."""
    names = [name for name in os.environ if name.startswith("SLURM_")]
    return host.environment(extra={name: os.environ[name] for name in names})


def _ask(question: str) -> Finished:
    # As the user would be answered: SLURM_CONF and modules say which cluster it is.
    env = {name: os.environ[name] for name in visible_variables(tuple(os.environ))}
    return process.run(["srun", question], env=env, timeout_s=_ASK_S)
