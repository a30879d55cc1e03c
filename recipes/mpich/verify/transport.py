"""Messages between neighbours over the transport that the environment chooses.

Which one carried them stands in its library's own log, which is this rank's
output; and in the network's counters, which nobody else moves in a test.
"""

from pathlib import Path

import envbuild_job
import numpy as np
from mpi4py import MPI

ELEMENTS = 2 * 1024 * 1024  # int64: 16 MiB a rank


def received_bytes() -> int:
    """Return how many bytes the network interfaces here have received, loopback included."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[0]) for line in lines)


def main() -> None:
    """Send each neighbour a message of its own and report what came."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    sent = np.full(ELEMENTS, rank + 1, dtype=np.int64)
    received = np.zeros_like(sent)

    comm.Barrier()
    before = received_bytes()
    comm.Barrier()
    comm.Sendrecv(sent, dest=(rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
    comm.Barrier()
    moved = received_bytes() - before

    envbuild_job.report(
        rank=rank,
        size=size,
        sender_least=int(received.min()),
        sender_most=int(received.max()),
        over_network=int(moved >= size * sent.nbytes),
    )


if __name__ == "__main__":
    main()
