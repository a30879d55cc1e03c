"""cntk: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_cntk = partial(control, "cntk", "learner")
_cntk_train = partial(control, "cntk", "train")

CONTROLS = (
    _cntk("singletons", "D0/D10.cntk D10.cntk/weight_first D10.cntk/weight_last", before=SINGLETONS),
    _cntk(
        "gradients not added",
        "D10.cntk/weight_first D10.cntk/weight_last",
        ("[data_parallel_distributed_learner(local)]", "[local]"),
    ),
    _cntk_train("singletons", "D0/D10.cntk-train", before=SINGLETONS),
    _cntk_train(
        "gradients not added",
        "D10.cntk-train/losses-as-one-rank D10.cntk-train/parameters-as-one-rank "
        "D10.cntk-train/parameter_hash",
        ("[data_parallel_distributed_learner(local)]", "[local]"),
    ),
    _cntk_train(
        "all on one share",
        "D10.cntk-train/losses-as-one-rank D10.cntk-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _cntk_train("fewer steps", "D10.cntk-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
)
