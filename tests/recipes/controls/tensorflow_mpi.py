"""tensorflow-mpi: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_averaged = partial(control, "tensorflow-mpi", "averaged")
_mpi_train = partial(control, "tensorflow-mpi", "averaged_train")

CONTROLS = (
    _averaged("singletons", "D0/D3.mpi D3.mpi/weight_first D3.mpi/weight_last", before=SINGLETONS),
    _averaged(
        "no averaging",
        "D3.mpi/weight_first D3.mpi/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _mpi_train("singletons", "D0/D3.mpi-train", before=SINGLETONS),
    _mpi_train(
        "gradients not added",
        "D3.mpi-train/parameter_hash D3.mpi-train/losses-as-one-rank D3.mpi-train/parameters-as-one-rank",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _mpi_train(
        "all on one share",
        "D3.mpi-train/losses-as-one-rank D3.mpi-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _mpi_train("fewer steps", "D3.mpi-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
)
