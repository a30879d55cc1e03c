"""Slurm's srun, outside the image: it starts one container a task, on all nodes of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.check.launchers.hostmpiexec import apart


@dataclass(frozen=True)
class Srun:
    """Starts ranks with srun.

    Attributes
    ----------
    mpi_type : str
        What ``srun --mpi`` takes: the PMI that the library speaks; empty for a job without MPI.
    family : str
        Of the MPI that the ranks run on.
    """

    mpi_type: str
    family: str

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
        kind = [f"--mpi={self.mpi_type}"] if self.mpi_type else []
        return ["srun", *kind, *count, *runtime, *job]

    def environment(self) -> dict[str, str]:
        """Return the variables that ranks in containers of their own want."""
        return apart(self.family)
