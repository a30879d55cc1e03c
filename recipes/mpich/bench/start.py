# /// job
# id: mpi.start
# title: seconds until a rank runs Python, and until mpi4py has started MPI
# expect: {ranks_seen: n}
# measures:
#   start: {unit: s, higher_is_better: false}
#   import: {unit: s, higher_is_better: false}
# ///
"""How long a rank takes to start, and to import mpi4py, which starts MPI.

The start is counted from the command that starts all ranks; on other nodes it depends on their clocks.
"""

import os
import time

BEGAN = time.time()

import envbuild_job  # noqa: E402  # the clock is read first
from mpi4py import MPI  # noqa: E402  # and this import is measured

IMPORTED = time.time()


def main() -> None:
    """Report both times."""
    comm = MPI.COMM_WORLD
    times = {"start": BEGAN - float(os.environ["ENVBUILD_STARTED"]), "import": IMPORTED - BEGAN}
    values = {"ranks_seen": comm.Get_size()}
    envbuild_job.report(rank=comm.Get_rank(), size=comm.Get_size(), **times, **values)


if __name__ == "__main__":
    main()
