"""openmpi-debian: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_mpi_by_name = partial(control, "openmpi-debian", "collectives")

CONTROLS = (
    _mpi_by_name("singletons", "D0/D1.mpi D1.mpi/sum D1.mpi/payload_least", before=SINGLETONS),
    _mpi_by_name("a wrong addend", "D1.mpi/sum", ("(rank + 1), total", "(rank), total")),
    _mpi_by_name(
        "bits of one rank",
        "D1.mpi/bor",
        ('call("MPI_Allreduce", words, united, len(words), INT64, BOR, WORLD)', "united = words"),
    ),
    _mpi_by_name(
        "senders mixed up",
        "D1.mpi/alltoall",
        ('call("MPI_Alltoall", sent, 1, INT64, received, 1, INT64, WORLD)', "received = sent"),
    ),
    _mpi_by_name(
        "no large message",
        "D1.mpi/payload_least D1.mpi/payload_most",
        ('call("MPI_Allreduce", IN_PLACE, large, ELEMENTS, DOUBLE, SUM, WORLD)', "pass"),
    ),
    _mpi_by_name("a small message", "D1.mpi/payload_bytes", ("ELEMENTS = 1024 * 1024", "ELEMENTS = 1024")),
)
