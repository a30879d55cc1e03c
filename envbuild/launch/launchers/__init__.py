"""What starts the ranks of an image: a module for each launcher, named as `--launcher` takes it. Pure.

A new launcher is one module here, with a function ``choose(context)`` that returns a `Launcher`, or None for
an image whose ranks it cannot start. All other code asks a launcher for its words and variables, and whether
its ranks may be on several nodes; none asks which one it is.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuild.launch.context import LaunchContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many ranks a launcher starts, and where."""

    ranks: int
    """Count; 0 for as many as the launcher's job has tasks."""
    tasks_of_job: str = ""
    """How a batch script names the tasks of its job (``$_eb_ranks``)."""
    nodes: int = 0
    """Nodes to start them on (count); 0 leaves it to the launcher."""
    names: tuple[str, ...] = ()
    """The nodes themselves; empty for any."""
    measures: bool = False
    """Whether there is one rank on each node, which sees all CPUs of it."""
    oversubscribe: bool = False
    """Whether there may be more ranks than cores."""
    variables: tuple[str, ...] = ()
    """Names of variables of its own environment that ranks need; most launchers pass all of them on."""
    as_root: bool = False
    """Whether root starts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher(ABC):
    """A program that starts ranks."""

    program: str
    """Its name or path."""
    pmi: str = ""
    """The type for ``--mpi`` by which ranks meet; empty where the program knows it itself."""
    family: str = ""
    """MPI implementation that the ranks run on; empty for none."""
    doubt: str = ""
    """Why ranks may not find each other; empty if they will."""
    spans_nodes: bool = False
    """Whether it runs on the host and starts one container for each rank, perhaps on other nodes.

    If not, it runs inside of the image, and all its ranks share one container on this machine.
    """
    starts: frozenset[str] = frozenset(("mpiexec", "any"))
    """The values of `launcher` of the jobs that it can start (``mpiexec``: all that need an MPI)."""
    scheduler: str = ""
    """The scheduler whose jobs it takes nodes and ranks from (``slurm``); empty for none."""
    job_variables: tuple[str, ...] = ()
    """Beginnings of the names of the variables by which it knows its job: ``SLURM_``."""

    @property
    def owner(self) -> str:
        """Whose launcher it is, as the fact ``mpi.launcher`` says it: ``srun``, ``host`` or ``image``."""
        of_host = self.program if self.scheduler else "host"
        return of_host if self.spans_nodes else "image"

    @property
    def label(self) -> str:
        """``srun --mpi=pmi2``: the program, and the type by which ranks meet."""
        return f"{self.program} --mpi={self.pmi}" if self.pmi else self.program

    @abstractmethod
    def words(self, shape: Shape) -> list[str]:
        """Return the words before the command of a rank."""

    def variables(self, *, separate: bool = True) -> Mapping[str, str]:
        """Return the variables that its ranks need.

        `separate`: a rank in a container of its own has a user namespace of its own, too.
        """
        return variables_of_separate_ranks(self.family) if self.spans_nodes and separate else {}


def launcher_names() -> tuple[str, ...]:
    """Return the names of all launchers, sorted: those of the modules of this package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def launcher_for(name: str, context: LaunchContext) -> Launcher | None:
    """Return the launcher of a name for an image; None if it cannot start the image's ranks.

    RequestError: ranks would not find each other. MachineError: the scheduler does not answer.
    """
    found: Launcher | None = import_module(f"{__name__}.{name}").choose(context)
    return found


# Ranks in one container each have their own user namespaces: the kernel lets none read another's memory
# (CMA), nor follow /proc/PID/fd. Files in /dev/shm work.
_SEPARATE: Mapping[str, Mapping[str, str]] = {
    "openmpi": {
        "OMPI_MCA_smsc": "^cma",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "UCX_POSIX_USE_PROC_LINK": "n",
        "UCX_TLS": "^cma",
    },
    "mpich": {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n", "UCX_TLS": "^cma"},
}


def variables_of_separate_ranks(family: str) -> Mapping[str, str]:
    """Return the variables that ranks of an MPI family need if each has a container of its own."""
    return _SEPARATE.get(family, {})


def launcher_family(implementation: str, abis: Sequence[str] = ()) -> str:
    """Return the implementation whose words a host's launcher takes (``cray-mpich`` → ``mpich``).

    `abis` are those by which the image's programs load the host's MPI, if known.
    """
    if any(abi.startswith("openmpi") for abi in abis):
        return "openmpi"
    return "mpich" if implementation == "cray-mpich" else implementation
