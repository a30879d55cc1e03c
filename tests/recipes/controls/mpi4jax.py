"""mpi4jax: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_mpi4jax = partial(control, "mpi4jax", "averaged")
_mpi4jax_train = partial(control, "mpi4jax", "summed_train")

CONTROLS = (
    _mpi4jax(
        "singletons",
        "D0/D8.mpi4jax D8.mpi4jax/sum D8.mpi4jax/weight_first D8.mpi4jax/weight_last",
        before=SINGLETONS,
    ),
    _mpi4jax(
        "no averaging",
        "D8.mpi4jax/weight_first D8.mpi4jax/weight_last",
        ("mpi4jax.allreduce(jax.grad(loss)(w), op=MPI.SUM, comm=comm) / size", "jax.grad(loss)(w)"),
    ),
    _mpi4jax(
        "another operation",
        "D8.mpi4jax/sum",
        ("allreduce(number, op=MPI.SUM", "allreduce(number, op=MPI.MAX"),
    ),
    _mpi4jax("what rank 0 has", "D8.mpi4jax/from_last", ("bcast(number, size - 1,", "bcast(number, 0,")),
    _mpi4jax_train("singletons", "D0/D8.mpi4jax-train", before=SINGLETONS),
    _mpi4jax_train(
        "gradients not added",
        "D8.mpi4jax-train/parameter_hash D8.mpi4jax-train/losses-as-one-rank "
        "D8.mpi4jax-train/parameters-as-one-rank",
        ("[mpi4jax.allreduce(each, op=MPI.SUM, comm=comm) for each in gradients]", "list(gradients)"),
    ),
    _mpi4jax_train(
        "all on one share",
        "D8.mpi4jax-train/losses-as-one-rank D8.mpi4jax-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _mpi4jax_train(
        "fewer steps", "D8.mpi4jax-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
)
