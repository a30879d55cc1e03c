"""mpiexec: the image's own, in one container on this machine; or the host's, a container for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.errors import RequestError
from envbuild.jobs.launchers import mpiexec_words, on_one_host
from envbuild.launch.context import LaunchContext
from envbuild.launch.launchers import Launcher, Shape, launcher_family

# MPI family → options for one rank on each node, and the option that names nodes, on the host.
_ONE_PER_NODE = {"openmpi": ("--map-by", "ppr:1:node"), "mpich": ("-ppn", "1"), "intel-mpi": ("-ppn", "1")}
_HOSTS = {"openmpi": "--host", "mpich": "-hosts", "intel-mpi": "-hosts"}
# By which the host's finds the nodes of a job.
_JOB_VARIABLES = ("PBS_", "PALS_", "LSB_", "OAR_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpiexec(Launcher):
    """The mpiexec of an MPI."""

    def words(self, shape: Shape) -> list[str]:
        """Return its words; they differ by MPI."""
        words = mpiexec_words(
            self.family,
            shape.ranks or shape.tasks_of_job or 1,
            root=shape.as_root,
            oversubscribe=shape.oversubscribe,
            program=self.program,
        )
        if self.spans_nodes and shape.measures:
            words += _ONE_PER_NODE.get(self.family, ())
        if self.spans_nodes and self.family == "openmpi":
            # It passes only variables of its own on to other nodes.
            words += [word for name in shape.variables for word in ("-x", name)]
        if self.spans_nodes and shape.names and self.family in _HOSTS:
            words += [_HOSTS[self.family], ",".join(shape.names)]
        return words

    def variables(self, *, separate: bool = True) -> Mapping[str, str]:
        """Return the variables that its ranks need, or that keep an image's own to this machine."""
        if not self.spans_nodes:
            return on_one_host(self.family)
        return super(Mpiexec, self).variables(separate=separate)


def choose(context: LaunchContext) -> Mpiexec | None:
    """Choose the host's mpiexec for the host's MPI, if the site names one, else the image's own.

    RequestError: ranks must be able to start on several nodes, and nothing that the site names starts them.
    """
    if context.across_nodes:
        return _across_nodes(context)
    host_mpi = context.host_mpi
    if host_mpi is not None and host_mpi.launcher is not None:
        return _of_host(host_mpi.launcher, launcher_family(host_mpi.implementation, context.abis))
    return Mpiexec(program=context.program("mpiexec"), family=context.family) if context.family else None


def _of_host(program: str, family: str) -> Mpiexec:
    return Mpiexec(program=program, family=family, spans_nodes=True, job_variables=_JOB_VARIABLES)


def _across_nodes(context: LaunchContext) -> Mpiexec:
    """Return the host's mpiexec: it starts processes, and ranks of the image's own MPI of its family."""
    mpi = context.site.mpi if context.site is not None else None
    name = context.site.name if context.site is not None else ""
    if mpi is None or mpi.launcher is None:
        raise RequestError(
            f"the site `{name}` names no launcher, which would start ranks on several nodes",
            hint="name its mpiexec in the site file: `mpi: {implementation: …, launcher: /path/mpiexec}`",
        )
    family = launcher_family(mpi.implementation)
    if context.family and family != context.family:
        raise RequestError(
            f"the mpiexec of the site `{name}` is that of {mpi.implementation}, and the image has"
            f" {context.family}: each rank would run as rank 0 of 1",
            hint=f"build the image with an MPI of the family of {family}",
        )
    return _of_host(mpi.launcher, family)
