"""MPI's collectives through mpi4py; reports what came out, judges nothing."""

import envbuild_job
import numpy as np
from mpi4py import MPI

BITS = 32  # per word, so that N ranks fit into int64 words for any N
ELEMENTS = 8 * 1024 * 1024  # float64: 64 MiB a rank


def main() -> None:
    """Take part in each collective once and report."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()

    total = np.zeros(1, dtype=np.int64)
    comm.Allreduce(np.array([rank + 1], dtype=np.int64), total, op=MPI.SUM)

    words = np.zeros(size // BITS + 1, dtype=np.int64)
    words[rank // BITS] = 1 << (rank % BITS)
    united = np.zeros_like(words)
    comm.Allreduce(words, united, op=MPI.BOR)

    # Rank s sends s * size + d to rank d; the weights tell senders apart.
    sent = rank * size + np.arange(size, dtype=np.int64)
    received = np.zeros_like(sent)
    comm.Alltoall(sent, received)

    # Every element has a value of its own: index * N(N+1)/2, exact in float64.
    index = np.arange(ELEMENTS, dtype=np.float64)
    large = index * (rank + 1)
    comm.Allreduce(MPI.IN_PLACE, large, op=MPI.SUM)
    factors = large[1:] / index[1:]

    envbuild_job.report(
        rank=rank,
        size=size,
        sum=int(total[0]),
        bor=sum(int(word) << (BITS * place) for place, word in enumerate(united)),
        alltoall=sum((sender + 1) * int(cell) for sender, cell in enumerate(received)),
        payload_bytes=int(large.nbytes),
        payload_least=float(factors.min()),
        payload_most=float(factors.max()),
    )


if __name__ == "__main__":
    main()
