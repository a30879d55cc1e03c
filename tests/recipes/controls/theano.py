"""theano: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_theano = partial(control, "theano", "averaged")
_theano_train = partial(control, "theano", "train")

CONTROLS = (
    _theano("singletons", "D0/D12.theano D12.theano/weight_first D12.theano/weight_last", before=SINGLETONS),
    _theano(
        "no averaging",
        "D12.theano/weight_first D12.theano/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _theano(
        "without a compiler",
        "D12.theano/compiled",
        ("theano = compiling.imported()\n", 'theano = compiling.imported()\ntheano.config.cxx = ""\n'),
    ),
    _theano_train("singletons", "D0/D12.theano-train", before=SINGLETONS),
    _theano_train(
        "gradients not added",
        "D12.theano-train/losses-as-one-rank D12.theano-train/parameters-as-one-rank "
        "D12.theano-train/parameter_hash",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _theano_train(
        "all on one share",
        "D12.theano-train/losses-as-one-rank D12.theano-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _theano_train(
        "fewer steps", "D12.theano-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
)
