"""Messages between neighbours over the transport that a job's environment chooses.

The log of the transport's library, which is this rank's output, says which one carried them; so do the
network's counters, which nothing else moves in a test.
"""

import envbuild_job
import numpy as np
from mpi4py import MPI

ELEMENTS = 2 * 1024 * 1024  # int64: 16 MiB a rank


def main() -> None:
    """Send each neighbour a message and report what came."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    # control from the wrong rank: sent = np.full(ELEMENTS, rank, dtype=np.int64)
    sent = np.full(ELEMENTS, rank + 1, dtype=np.int64)
    received = np.zeros_like(sent)

    comm.Barrier()
    before = envbuild_job.received_bytes()
    comm.Barrier()
    comm.Sendrecv(sent, dest=(rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
    comm.Barrier()
    moved = envbuild_job.received_bytes() - before

    envbuild_job.report(
        rank=rank,
        size=size,
        sender_least=int(received.min()),
        sender_most=int(received.max()),
        over_network=int(moved >= size * sent.nbytes),
    )
