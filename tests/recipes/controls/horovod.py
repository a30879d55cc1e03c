"""horovod: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_horovod = partial(control, "horovod", "averaged")
_horovod_train = partial(control, "horovod", "train")

CONTROLS = (
    _horovod("singletons", "D0/D4.horovod D4.horovod/sum D4.horovod/weight_first", before=SINGLETONS),
    _horovod(
        "no averaging",
        "D4.horovod/weight_first D4.horovod/weight_last",
        (
            'hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), named_parameters=[("w", w)])',
            "torch.optim.SGD([w], lr=1.0)",
        ),
    ),
    _horovod(
        "ranks that begin elsewhere",
        "D4.horovod/weight_first",
        ('hvd.broadcast_parameters({"w": w.data}, root_rank=0)', "pass"),
        ("lr=1.0", "lr=0.5"),
    ),
    _horovod("not over MPI", "D4.horovod/mpi", ("hvd.mpi_enabled()", "hvd.gloo_enabled()")),
    _horovod("another operation", "D4.horovod/sum", ("op=hvd.Sum)", "op=hvd.Max)")),
    _horovod("what rank 0 has", "D4.horovod/from_last", ("root_rank=size - 1", "root_rank=0")),
    _horovod_train("singletons", "D0/D4.horovod-train", before=SINGLETONS),
    _horovod_train(
        "no averaging",
        "D4.horovod-train/parameter_hash D4.horovod-train/losses-as-one-rank "
        "D4.horovod-train/parameters-as-one-rank",
        (
            "hvd.DistributedOptimizer(\n        torch.optim.SGD(model.parameters(), lr=0.05),"
            " named_parameters=model.named_parameters()\n    )",
            "torch.optim.SGD(model.parameters(), lr=0.05)",
        ),
    ),
    _horovod_train(
        "all on one share",
        "D4.horovod-train/losses-as-one-rank D4.horovod-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _horovod_train(
        "fewer steps", "D4.horovod-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")
    ),
)
