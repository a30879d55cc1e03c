"""PyTorch's own torchrun, inside the image: one agent starts all ranks of this host.

Standard library only, Python 3.9 or newer: travels in every image, where a
bare `apptainer test` starts the ranks with the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Torchrun:
    """Starts ranks with the `torchrun` that is first on the image's PATH; needs no MPI.

    Its rendezvous is on the loopback: the host's name need not resolve, and
    the system chooses the port.
    """

    def command(self, runtime: Sequence[str], job: Sequence[str], ranks: int) -> list[str]:
        """Return the command line: what enters the image, then torchrun, then the job.

        Parameters
        ----------
        runtime : sequence of str
            What starts a program in the image (``apptainer exec … IMAGE``); empty inside it.
        job : sequence of str
            The command line of one rank.
        ranks : int
            Processes to start (count).
        """
        here = ("--standalone", "--local-addr", "127.0.0.1")
        # Without --no-python it would put a Python of its own choice in front of the job.
        return [*runtime, "torchrun", *here, "--nproc-per-node", str(ranks), "--no-python", *job]

    def environment(self) -> dict[str, str]:
        """Return the variables that it wants beside those of the job."""
        return {}
