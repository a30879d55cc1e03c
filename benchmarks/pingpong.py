"""Two ranks send messages to and fro; rank 0 prints the seconds of one way for each size, as JSON."""

from __future__ import annotations

import json
import statistics
from typing import Any

SIZES = {8: 2000, 65_536: 300, 1_048_576: 60, 4_194_304: 30}
WARM_UP = 20


def main(mpi: Any) -> None:  # noqa: ANN401  # mpi4py is of the image, not of the checkout
    """Measure every size; of each the median over its round trips."""
    comm = mpi.COMM_WORLD
    other = 1 - comm.rank
    found: dict[int, float] = {}
    for size, count in SIZES.items():
        buffer = bytearray(size)
        times = []
        for _ in range(WARM_UP + count):
            comm.Barrier()
            started = mpi.Wtime()
            if comm.rank == 0:
                comm.Send([buffer, mpi.BYTE], other)
                comm.Recv([buffer, mpi.BYTE], other)
            else:
                comm.Recv([buffer, mpi.BYTE], other)
                comm.Send([buffer, mpi.BYTE], other)
            times.append((mpi.Wtime() - started) / 2)
        found[size] = statistics.median(times[WARM_UP:])
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    from mpi4py import MPI  # type: ignore[import-not-found]

    main(MPI)
