# /// job
# id: mpi.collectives
# oracle: collectives
# title: MPI collectives through mpi4py, 64 MiB a rank
# expect: {payload_bytes: 64 * 2**20}
# hint: >-
#   `apptainer exec IMAGE python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'`
#   shows which MPI is loaded
# controls:
#   one wrong element: [payload_most]
#   a rank that calls itself 0: [ranks]
#   a size that is not: [ranks]
#   a rank without a report: [ranks]
#   a rank that dies: [end]
# ///
"""MPI's collectives through mpi4py."""

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
    # control bits of one rank: united = words
    comm.Allreduce(words, united, op=MPI.BOR)

    # Rank s sends s * size + d to rank d; the weights tell senders apart.
    sent = rank * size + np.arange(size, dtype=np.int64)
    received = np.zeros_like(sent)
    # control senders mixed up: received = sent
    comm.Alltoall(sent, received)

    # Every element has a value of its own: index * N(N+1)/2, exact in float64.
    index = np.arange(ELEMENTS, dtype=np.float64)
    large = index * (rank + 1)
    # control no large message: pass
    comm.Allreduce(MPI.IN_PLACE, large, op=MPI.SUM)
    # control one wrong element: large[-1] += 1e7
    # control one wrong element: factors = large[1:] / index[1:]
    factors = large[1:] / index[1:]

    # control a rank without a report: rank == 1 or envbuild_job.report(
    envbuild_job.report(
        # control a rank that calls itself 0: rank=0,
        rank=rank,
        # control a size that is not: size=size + 1,
        size=size,
        sum=int(total[0]),
        bor=sum(int(word) << (BITS * place) for place, word in enumerate(united)),
        alltoall=sum((sender + 1) * int(cell) for sender, cell in enumerate(received)),
        payload_bytes=int(large.nbytes),
        payload_least=float(factors.min()),
        payload_most=float(factors.max()),
    )


if __name__ == "__main__":
    # control a rank that dies: main()
    # control a rank that dies: raise SystemExit(3)
    main()
