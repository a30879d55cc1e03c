# /// job
# id: mpi.gpu-buffers
# title: MPI moves and adds up buffers on GPUs
# devices: [gpu]
# own_mpi: true
# environment: {I_MPI_OFFLOAD: "1"}
# expect:
#   sum_least: n*(n+1)//2
#   sum_most: n*(n+1)//2
#   sender_least: r - n*((r-1)//n)
#   sender_most: r - n*((r-1)//n)
# hint: I_MPI_DEBUG=3 says whether Intel MPI took the CUDA driver
# controls:
#   another number in the buffers: [sum_least, sender_most]
# ///
"""MPI moves and adds up buffers on GPUs; reports what came out, judges nothing.

Each rank has its buffers on its own GPU, and hands MPI their addresses there.
"""

import ctypes

import envbuild_gpus
import envbuild_job
import mpi4py

# The GPU is chosen before MPI looks for one.
mpi4py.rc.initialize = False

from mpi4py import MPI  # noqa: E402

ELEMENTS = 1024 * 1024  # int64: 8 MiB
Numbers = ctypes.c_int64 * ELEMENTS


class Buffer:
    """An array on a GPU, which mpi4py takes by its CUDA Array Interface."""

    def __init__(self, driver: envbuild_gpus.Driver, value: int) -> None:
        self.driver = driver
        self.address = driver.allocate(ctypes.sizeof(Numbers))
        driver.write(self.address, Numbers(*[value] * ELEMENTS))

    @property
    def __cuda_array_interface__(self) -> "dict[str, object]":
        return {"shape": (ELEMENTS,), "typestr": "<i8", "data": (self.address, False), "version": 3}

    def values(self) -> "tuple[int, int]":
        """Return the smallest and the largest element."""
        numbers = Numbers()
        self.driver.read(self.address, numbers)
        return min(numbers), max(numbers)


def main() -> None:
    """Add up over all ranks, pass a message to the next rank, and report."""
    driver = envbuild_gpus.Driver()
    index = envbuild_gpus.own_gpu(driver.count())
    driver.use(index)
    MPI.Init()
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()

    # control another number in the buffers: own = Buffer(driver, rank + 2)
    own = Buffer(driver, rank + 1)
    total, received = Buffer(driver, 0), Buffer(driver, 0)
    comm.Allreduce(own, total, op=MPI.SUM)
    comm.Sendrecv(own, dest=(rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
    sums, senders = total.values(), received.values()
    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=[driver.describe(index)["id"]],
        sum_least=sums[0],
        sum_most=sums[1],
        sender_least=senders[0],
        sender_most=senders[1],
    )
    MPI.Finalize()


if __name__ == "__main__":
    main()
