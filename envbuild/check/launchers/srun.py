"""Slurm's srun, outside the image: it starts one container a task, on all nodes of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.check.launchers.hostmpiexec import apart

# MPICH 5.0 tells others the addresses of its UCX in lines that Slurm's PMI cuts: with some environments
# what follows in memory goes along, and ranks end in MPI_Init or hang. Those of libfabric are short.
_UNDER_SLURM: Mapping[str, Mapping[str, str]] = {"mpich": {"MPIR_CVAR_CH4_NETMOD": "ofi"}}


@dataclass(frozen=True)
class Srun:
    """Starts ranks with srun.

    Attributes
    ----------
    mpi_type : str
        What ``srun --mpi`` takes: the PMI that the library speaks; empty for a job without MPI.
    family : str
        Of the MPI that the ranks run on.
    own : bool
        Whether that is the image's own, and not the host's.
    """

    mpi_type: str
    family: str
    own: bool = True

    @property
    def word(self) -> str:
        """The option that names the PMI; empty for a job without MPI."""
        return f"--mpi={self.mpi_type}" if self.mpi_type else ""

    def command(self, runtime: Sequence[str], job: Sequence[str], ranks: int) -> list[str]:
        """Return the command line: srun, then what enters the image, then the job.

        Parameters
        ----------
        runtime : sequence of str
            What starts a program in the image (``apptainer exec … IMAGE``).
        job : sequence of str
            The command line of one rank.
        ranks : int
            Tasks to start (count); 0 leaves that to the allocation.
        """
        count = ["-n", str(ranks)] if ranks else []
        return ["srun", *([self.word] if self.word else []), *count, *runtime, *job]

    def environment(self) -> dict[str, str]:
        """Return the variables that ranks in containers of their own want, and what Slurm's PMI asks for."""
        return apart_under_slurm(self.family) if self.own else apart(self.family)


def apart_under_slurm(family: str) -> dict[str, str]:
    """Return the variables for tasks of srun in containers of their own, on an image's own MPI.

    Parameters
    ----------
    family : str
        Of the MPI that they run on.
    """
    return {**apart(family), **_UNDER_SLURM.get(family, {})}
