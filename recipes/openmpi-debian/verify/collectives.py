# /// job
# id: mpi.collectives
# oracle: collectives
# title: MPI collectives through ctypes, 8 MiB a rank
# expect: {payload_bytes: 8 * 2**20}
# hint: "`apptainer exec IMAGE mpirun --version` shows which Open MPI it is"
# ///
"""Open MPI's collectives by their C names, without NumPy and mpi4py; Python 2.7 or newer."""

import ctypes

import envbuild_job

BITS = 32  # per word, so that N ranks fit into int64 words for any N
ELEMENTS = 1024 * 1024  # float64: 8 MiB a rank
IN_PLACE = ctypes.c_void_p(1)

# Open MPI's modules look up what they use of it among the names that are visible to all.
MPI = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name):
    """Return one of MPI's predefined objects: in Open MPI, the address of a variable."""
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(MPI, name)))


WORLD = handle("ompi_mpi_comm_world")
INT64 = handle("ompi_mpi_int64_t")
DOUBLE = handle("ompi_mpi_double")
SUM = handle("ompi_mpi_op_sum")
BOR = handle("ompi_mpi_op_bor")


def call(name, *arguments):
    """Call one of MPI's functions."""
    code = getattr(MPI, name)(*arguments)
    if code != 0:
        raise RuntimeError("{} returned {}".format(name, code))


def number_of(name):
    """Return the result of MPI_Comm_rank or MPI_Comm_size."""
    number = ctypes.c_int(-1)
    call(name, WORLD, ctypes.byref(number))
    return number.value


def main():
    """Take part in each collective once and report."""
    call("MPI_Init", None, None)
    rank, size = number_of("MPI_Comm_rank"), number_of("MPI_Comm_size")

    total = (ctypes.c_int64 * 1)()
    call("MPI_Allreduce", (ctypes.c_int64 * 1)(rank + 1), total, 1, INT64, SUM, WORLD)

    words = (ctypes.c_int64 * (size // BITS + 1))()
    words[rank // BITS] = 1 << (rank % BITS)
    united = (ctypes.c_int64 * len(words))()
    # control bits of one rank: united = words
    call("MPI_Allreduce", words, united, len(words), INT64, BOR, WORLD)

    # Rank s sends s * size + d to rank d; the weights tell senders apart.
    sent = (ctypes.c_int64 * size)(*[rank * size + other for other in range(size)])
    received = (ctypes.c_int64 * size)()
    # control senders mixed up: received = sent
    call("MPI_Alltoall", sent, 1, INT64, received, 1, INT64, WORLD)

    # Every element has a value of its own: index * N(N+1)/2, exact in float64.
    large = (ctypes.c_double * ELEMENTS)(*[float(index * (rank + 1)) for index in range(ELEMENTS)])
    # control no large message: pass
    call("MPI_Allreduce", IN_PLACE, large, ELEMENTS, DOUBLE, SUM, WORLD)
    factors = [large[index] / index for index in range(1, ELEMENTS)]

    envbuild_job.report(
        rank=rank,
        size=size,
        sum=total[0],
        bor=sum(word << (BITS * place) for place, word in enumerate(united)),
        alltoall=sum((sender + 1) * cell for sender, cell in enumerate(received)),
        payload_bytes=ctypes.sizeof(large),
        payload_least=min(factors),
        payload_most=max(factors),
    )
    call("MPI_Finalize")


if __name__ == "__main__":
    main()
