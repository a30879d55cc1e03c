"""chainer: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_chainer = partial(control, "chainer", "averaged")
_chainer_train = partial(control, "chainer", "train")

CONTROLS = (
    _chainer(
        "singletons",
        "D0/D13.chainer D13.chainer/sum D13.chainer/weight_first D13.chainer/weight_last",
        before=SINGLETONS,
    ),
    _chainer("own share alone", "D13.chainer/sum", ("comm.allreduce_obj(rank + 1)", "rank + 1")),
    _chainer(
        "no averaging",
        "D13.chainer/weight_begun D13.chainer/weight_first D13.chainer/weight_last",
        (
            "chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1.0), comm)",
            "chainer.optimizers.SGD(lr=1.0)",
        ),
    ),
    _chainer_train("singletons", "D0/D13.chainer-train", before=SINGLETONS),
    _chainer_train(
        "no averaging",
        "D13.chainer-train/parameter_hash D13.chainer-train/losses-as-one-rank "
        "D13.chainer-train/parameters-as-one-rank",
        (
            "chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=0.05), comm)",
            "chainer.optimizers.SGD(lr=0.05)",
        ),
        # The first update has something to do then.
        ("    model.cleargrads()\n    optimizer.update()\n", ""),
    ),
    _chainer_train(
        "all on one share",
        "D13.chainer-train/losses-as-one-rank D13.chainer-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _chainer_train(
        "fewer steps", "D13.chainer-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
)
