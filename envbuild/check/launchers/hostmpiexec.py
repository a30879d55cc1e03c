"""The host's own mpiexec, outside the image: it starts one container a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.check.launchers.mpiexec import Mpiexec

# Each rank has a user namespace of its own: the kernel lets none read another's memory (CMA), nor
# follow /proc/PID/fd. What goes through files in /dev/shm works, and is told to be used.
_APART: Mapping[str, Mapping[str, str]] = {
    "openmpi": {
        "OMPI_MCA_smsc": "^cma",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "UCX_POSIX_USE_PROC_LINK": "n",
        "UCX_TLS": "^cma",
    },
    "mpich": {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n", "UCX_TLS": "^cma"},
}


@dataclass(frozen=True)
class HostMpiexec:
    """Starts ranks with a host's `mpiexec`.

    Attributes
    ----------
    program : str
        Its path.
    family : str
        Whose it is (``mpich``, ``openmpi``, ``intel-mpi``).
    root, crowded : bool
        As those of `Mpiexec`.
    """

    program: str
    family: str
    root: bool = False
    crowded: bool = True

    def command(self, runtime: Sequence[str], job: Sequence[str], ranks: int) -> list[str]:
        """Return the command line: mpiexec, then what enters the image, then the job.

        Parameters
        ----------
        runtime : sequence of str
            What starts a program in the image (``apptainer exec … IMAGE``).
        job : sequence of str
            The command line of one rank.
        ranks : int
            Processes to start (count).
        """
        inside = Mpiexec(family=self.family, root=self.root, crowded=self.crowded).command([], [], ranks)
        return [self.program, *inside[1:], *runtime, *job]

    def environment(self) -> dict[str, str]:
        """Return the variables that ranks in containers of their own want."""
        return apart(self.family)


def apart(family: str) -> dict[str, str]:
    """Return the variables for ranks of one node in containers of their own.

    Parameters
    ----------
    family : str
        Of the MPI that they run on.
    """
    return dict(_APART.get(family, {}))
