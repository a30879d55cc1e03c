"""tensorflow: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_mirrored = partial(control, "tensorflow", "mirrored")
_workers = partial(control, "tensorflow", "train")

CONTROLS = (
    _mirrored(
        "singletons",
        "D0/D3.mirrored D3.mirrored/sum D3.mirrored/weight_first D3.mirrored/weight_last",
        before=SINGLETONS,
    ),
    _mirrored(
        "gradients not added",
        "D3.mirrored/weight_first D3.mirrored/weight_last",
        ("context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)", "gradient"),
    ),
    _mirrored(
        "own share alone", "D3.mirrored/sum", ("context.all_reduce(tf.distribute.ReduceOp.SUM, own)", "own")
    ),
    _workers("singletons", "D0/D3.train", before=SINGLETONS),
    _workers(
        "gradients not added",
        "D3.train/parameter_hash D3.train/losses-as-one-rank D3.train/parameters-as-one-rank",
        ("gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)", "pass"),
    ),
    _workers(
        "all on one share",
        "D3.train/losses-as-one-rank D3.train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _workers("fewer steps", "D3.train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
)
