"""What a launcher is.

Standard library only, Python 3.9 or newer: travels in every image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Launcher(Protocol):
    """Turns a runtime, a job and a number of ranks into one command line.

    A launcher inside the image puts itself behind the runtime
    (``apptainer exec … IMAGE mpiexec -n 2 JOB``), one of the host in front of
    it (``srun -n 2 apptainer exec … IMAGE JOB``).
    """

    def command(self, runtime: Sequence[str], job: Sequence[str], ranks: int) -> list[str]:
        """Return the whole command line."""
        ...

    def environment(self) -> dict[str, str]:
        """Return the variables that the launcher wants in the image."""
        ...
