"""Where an allocation of nodes comes from: a module for each scheduler, whose `SCHEDULER` it is.

A new scheduler is one module here: the job that a process runs in, from its environment, and a batch script.
One that envbuild submits jobs to is a `Submitter`, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol

from envbuild.errors import EnvbuildError, RequestError
from envbuild.spec.model import LaunchSettings
from envbuild.spec.site import Site
from envbuild.system.files import read_input

_MODULES = ("slurm", "pbs")
# Where LSF, Grid Engine and OAR name the hosts of a job, one a line.
_NODE_FILES = ("LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "OAR_NODEFILE")
_MAX_NODES_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job of a scheduler that a process runs in."""

    scheduler: str
    """Name of the scheduler (``slurm``)."""
    nodes: int
    """Count."""
    tasks: int
    """Ranks that were asked for (count); of a job that was asked for nodes alone, one for each node."""
    queue: str = ""
    """Its queue (a partition of Slurm); empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A batch script to be: what it asks for, and what it runs."""

    name: str
    """Name of the job."""
    head: tuple[str, ...]
    """Comments at its beginning."""
    command: tuple[str, ...] = ()
    """The command that it runs if the user names none; empty if the user must."""
    nodes: int = 0
    """Count; 0 leaves it to the user."""
    ranks: int = 0
    """All ranks (count); 0 leaves it to the user."""
    ranks_per_node: int = 0
    """Count; 0 leaves it to the user."""
    gpus_per_node: int = 0
    """Count; 0 for none, or where the site's own options ask for them."""
    time_min: int = 0
    """Wall-clock limit in minutes; 0 leaves it to the user."""
    options: tuple[str, ...] = ()
    """The site's own options, in the scheduler's words."""
    comment: str = ""
    """Names the image in the scheduler's comment on the job, if it has one; the user's own replaces it."""
    body: tuple[str, ...]
    """Lines of POSIX shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a submitted job."""

    state: str
    """In the scheduler's words; empty if it does not know the job."""
    code: int = 0
    """Exit code of a job that has ended."""
    nodes: str = ""
    """In the scheduler's words."""
    reason: str = ""
    """Why it waits; empty if it does not, or for no stated reason."""
    has_ended: bool = False
    ended_itself: bool = False
    """Whether `code` is that of its own command."""
    never_starts: bool = False
    """Whether it waits for what will not come."""
    hint: str = ""
    """The commands that say more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Tasks to submit as one job: each runs the same script, which its index tells apart."""

    name: str
    """Name of the job."""
    script: str
    tasks: int
    """Count, at least 1; their indices count from 0."""
    at_once: int = 0
    """So many run at the same time (count); 0 for as many as the scheduler likes."""
    after: tuple[str, ...] = ()
    """Jobs that have to end first, however they end."""
    options: tuple[str, ...] = ()
    """Further options, in the scheduler's words."""
    directory: Path
    """Working directory."""
    logs: Path
    """Where the output of each task goes: ``JOB_INDEX.log``."""
    variables: Mapping[str, str]
    """Everything that the tasks have in their environment, beside the scheduler's own variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """A task of an array that waits or runs."""

    job: str
    """Id of the array."""
    index: int
    state: str
    """In the scheduler's words (``PENDING``)."""
    reason: str = ""
    """Why it waits; empty if it does not, or for no stated reason."""
    node: str = ""


def image_comment(label: str, digest: str) -> str:
    """Return the comment of a job that runs an image: ``envbuild:NAME/VERSION@sha256:…``."""
    return f"envbuild:{label}@{digest}"


def work_for(
    site: Site | None,
    *,
    for_gpus: bool,
    launch: LaunchSettings | None = None,
    name: str = "",
    head: Sequence[str] = (),
    body: Sequence[str] = (),
    comment: str = "",
) -> Work:
    """Return work at a site, with its options and the ranks of `launch`: by default one for each GPU.

    RequestError: `launch` asks for more GPUs of a node than the site's nodes have.
    """
    gpus = site.gpus if site is not None else None
    of_node = gpus.count or 0 if gpus is not None and for_gpus else 0
    options = site.scheduler.batch_options if site is not None and site.scheduler is not None else ()
    work = Work(
        name=name,
        head=tuple(head),
        ranks_per_node=of_node,
        gpus_per_node=of_node,
        options=options,
        body=tuple(body),
        comment=comment,
    )
    if launch is None:
        return work
    ranks_per_node = launch.ranks_on_node(of_node)
    nodes = launch.node_count(ranks_per_node) or 0
    gpus_per_node = of_node
    if for_gpus and launch.gpus_per_rank is not None and ranks_per_node:
        gpus_per_node = launch.gpus_per_rank * ranks_per_node
    if of_node and gpus_per_node > of_node and site is not None:
        raise RequestError(
            f"{ranks_per_node} ranks on a node need {gpus_per_node} GPUs, and a node of `{site.name}` has"
            f" {of_node}",
            hint="state fewer `ranks_per_node` or `gpus_per_rank` in `launch` of the spec",
        )
    return replace(
        work,
        command=launch.command,
        nodes=nodes,
        ranks=launch.total_ranks or nodes * ranks_per_node,
        ranks_per_node=ranks_per_node,
        gpus_per_node=gpus_per_node,
        time_min=launch.time_min or 0,
    )


class Scheduler(Protocol):
    """A batch system."""

    name: str
    """As site files name it (``slurm``)."""
    title: str
    """As people do (``Slurm``)."""
    launcher: str
    """What starts the ranks of its jobs: a name of `launch.launchers`."""
    starts_ranks: bool
    """Whether that launcher always starts them on the nodes of a job, wherever it runs itself."""

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """Return the job that a process with this environment runs in; None outside of its jobs."""

    def script(self, work: Work) -> str:
        """Return a batch script. Pure."""


class Submitter(Scheduler, Protocol):
    """A batch system that envbuild submits jobs to."""

    def submit(
        self, script: str, options: Sequence[str], outputs: Sequence[Path], variables: Mapping[str, str]
    ) -> str:
        """Submit a script with further variables; return the job's id.

        The job writes its stdout and stderr to the two `outputs`. RequestError: the job is refused.
        MachineError: nothing answers.
        """

    def state(self, job: str) -> JobState:
        """Ask for the state of a job."""

    def cancel(self, job: str) -> None:
        """Cancel a job."""

    def task_of(self, environ: Mapping[str, str]) -> tuple[str, int] | None:
        """Return the array and the index of the task that runs with this environment; None without one."""

    def check(self, array: Array) -> None:
        """Ask whether an array would be accepted, and submit nothing; raises as `submit`."""

    def submit_array(self, array: Array) -> str:
        """Submit an array; return the job's id. Raises as `submit`."""

    def most_tasks(self) -> int:
        """Return how many tasks an array may have (count)."""

    def queued(self, name: str) -> tuple[QueuedTask, ...]:
        """Return the tasks of this user's arrays of a name that have not ended.

        MachineError: the scheduler does not answer.
        """

    def stuck(self, name: str) -> QueuedTask | None:
        """Return a task of arrays that were just submitted which waits for what will not come.

        MachineError: the scheduler does not answer.
        """

    def ended(self, jobs: Sequence[str]) -> Mapping[tuple[str, int], str]:
        """Return how tasks of arrays ended, in the scheduler's words: (job, index) → state.

        Those of which it keeps no record are left out.
        """


def scheduler(name: str) -> Scheduler | None:
    """Return the scheduler of a name; None for one that envbuild does not know."""
    if name not in _MODULES:
        return None
    found: Scheduler = import_module(f"{__name__}.{name}").SCHEDULER
    return found


def allocation(environ: Mapping[str, str] | None = None) -> Allocation | None:
    """Return the job that this process, or one with another environment, runs in; None outside of a job."""
    found = (scheduler(name) for name in _MODULES)
    environ = os.environ if environ is None else environ
    return next((job for each in found if each and (job := each.allocation(environ))), None)


def scheduler_of(site: Site | None) -> Scheduler | None:
    """Return the scheduler of the job that this runs in, else of a site; None without one that is known."""
    here = allocation()
    stated = site.scheduler.name if site is not None and site.scheduler is not None else ""
    return scheduler(here.scheduler if here else stated)


def default_launcher(site: Site | None) -> str:
    """Return the launcher of the job that this runs in, else of the site's scheduler, else ``mpiexec``."""
    found = scheduler_of(site)
    return found.launcher if found is not None else "mpiexec"


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return the words of a job that runs a command line of envbuild."""
    # -P: files of the directory that the job runs in are not modules of ours.
    return [sys.executable, "-P", "-m", "envbuild.cli.main", *arguments]


def queue_of_job() -> str:
    """Return the queue of the job that this runs in; empty outside of a job."""
    here = allocation()
    return here.queue if here is not None else ""


def nodes_here() -> int:
    """Return the nodes of the job that this runs in (count); 1 without one."""
    here = allocation()
    return here.nodes if here is not None else 1


def site_reaches_nodes(site: Site | None) -> bool:
    """Return whether this runs in a job of several nodes, on which the site's own mpiexec starts ranks."""
    return nodes_here() > 1 and site is not None and site.mpi is not None and site.mpi.launcher is not None


def variables_of_job(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables by which a launcher knows its cluster and job, and nothing else of the user's."""
    return {name: text for name, text in os.environ.items() if name.startswith(prefixes)}


def other_nodes(site: Site | None) -> str | None:
    """Return why there may be other nodes, which ranks started here do not reach; None without a sign."""
    here = allocation()
    if here is not None and here.nodes > 1:
        return f"the job has {here.nodes} nodes, and nothing of it starts ranks on the others"
    for name in _NODE_FILES:
        hosts = lines_of(os.environ.get(name, ""))
        if len({line.split()[0] for line in hosts}) > 1:
            return f"the job has several nodes ({name}), and nothing of it starts ranks on the others"
    stated = site.scheduler if site else None
    if stated is not None:
        return f"the site starts jobs by {stated.name}, by which envbuild starts nothing"
    if site is not None and site.fabric is not None:
        return f"the site `{site.name}` has a fabric, and names no scheduler"
    return None


def lines_of(path: str) -> list[str]:
    """Return the lines with words of a file of hosts; none if it cannot be read."""
    try:
        text = read_input(Path(path), limit_bytes=_MAX_NODES_BYTES).decode(errors="replace") if path else ""
    except EnvbuildError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def count_of(environ: Mapping[str, str], name: str) -> int:
    """Return a variable that is a count; 0 if it is not one."""
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0
