"""The image's own mpiexec, inside the image: all ranks on this host, in one container.

Standard library only, Python 3.9 or newer: travels in every image, where a
bare `apptainer test` starts the ranks with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# More ranks than cores is no mistake here: the job proves that ranks talk, not how fast.
_FLAGS: Mapping[str, tuple[str, ...]] = {"openmpi": ("--map-by", ":OVERSUBSCRIBE")}
_ROOT_FLAGS: Mapping[str, tuple[str, ...]] = {"openmpi": ("--allow-run-as-root",)}


@dataclass(frozen=True)
class Mpiexec:
    """Starts ranks with the `mpiexec` that is first on the image's PATH.

    Attributes
    ----------
    family : str
        Whose launcher it is (``mpich``, ``openmpi``, ``intel-mpi``).
    root : bool
        Whether the ranks run as root, which Open MPI refuses unless told.
    crowded : bool
        Whether there may be more ranks than cores, which Open MPI refuses unless told.
    """

    family: str
    root: bool = False
    crowded: bool = True

    def command(self, runtime: Sequence[str], job: Sequence[str], ranks: int) -> list[str]:
        """Return the command line: what enters the image, then mpiexec, then the job.

        Parameters
        ----------
        runtime : sequence of str
            What starts a program in the image (``apptainer exec … IMAGE``); empty inside it.
        job : sequence of str
            The command line of one rank.
        ranks : int
            Processes to start (count).
        """
        root = _ROOT_FLAGS.get(self.family, ()) if self.root else ()
        flags = _FLAGS.get(self.family, ()) if self.crowded else ()
        return [*runtime, "mpiexec", *root, *flags, "-n", str(ranks), *job]

    def environment(self) -> dict[str, str]:
        """Return the variables that it wants beside those of the job."""
        return {}
