# /// job
# id: mpi.allreduce
# title: time of an MPI allreduce by message size
# expect: {least: n*(n+1)//2, most: n*(n+1)//2}
# measures:
#   8B: {unit: us, higher_is_better: false, message_bytes: 8}
#   1KiB: {unit: us, higher_is_better: false, message_bytes: 1024}
#   16KiB: {unit: us, higher_is_better: false, message_bytes: 16384}
#   128KiB: {unit: us, higher_is_better: false, message_bytes: 131072}
#   1MiB: {unit: us, higher_is_better: false, message_bytes: 1048576}
#   4MiB: {unit: us, higher_is_better: false, message_bytes: 4194304}
#   16MiB: {unit: us, higher_is_better: false, message_bytes: 16777216}
# hint: the ranks loaded another MPI than the one that started them, or messages were lost
# ///
"""The time of an allreduce of float64 by message size, and its exact sum.

Each size is repeated in one loop between barriers, and the loop's time divided: the mean of a rank.
"""

import os
import time

import envbuild_job
import numpy as np
from mpi4py import MPI

# Those of the header: `8B:8 1KiB:1024`.
SIZES = [pair.rpartition(":")[::2] for pair in os.environ["ENVBUILD_MESSAGES"].split()]
# A loop sends about so many bytes, in at least and at most so many messages.
LOOP_BYTES, LEAST, MOST = 64 << 20, 5, 500


def main() -> None:
    """Measure each size and report."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    times, sums = {}, []
    for name, text in SIZES:
        size_bytes = int(text)
        numbers = np.full(size_bytes // 8, rank + 1.0)
        total = np.zeros_like(numbers)
        count = max(LEAST, min(MOST, LOOP_BYTES // size_bytes))
        for _ in range(LEAST):
            comm.Allreduce(numbers, total)
        comm.Barrier()
        started = time.perf_counter()
        for _ in range(count):
            comm.Allreduce(numbers, total)
        times[name] = (time.perf_counter() - started) / count * 1e6
        sums += [float(total.min()), float(total.max())]
    envbuild_job.report(rank=rank, size=size, least=min(sums), most=max(sums), **times)


if __name__ == "__main__":
    main()
