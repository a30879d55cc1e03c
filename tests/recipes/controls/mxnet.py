"""mxnet: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import RECLUSES, SINGLETONS, control

_kvstore = partial(control, "mxnet", "kvstore")
_mxnet = partial(control, "mxnet", "averaged")
_mxnet_train = partial(control, "mxnet", "averaged_train")

CONTROLS = (
    _kvstore(
        "singletons",
        "D0/D5.kvstore D5.kvstore/sum D5.kvstore/sum_again D5.kvstore/weight_first D5.kvstore/weight_last",
        before=RECLUSES,
    ),
    _kvstore(
        "own share alone",
        "D5.kvstore/sum D5.kvstore/sum_again",
        ('store.pull("number", out=total)', "total[:] = factor * (rank + 1)"),
    ),
    _kvstore("the same sum twice", "D5.kvstore/sum_again", ("in (1, 2)", "in (1, 1)")),
    _kvstore(
        "gradients not added",
        "D5.kvstore/weight_first D5.kvstore/weight_last",
        ('store.push("weight", w.grad / size)', "w[:] -= w.grad"),
        ('store.pull("weight", out=w)', "pass"),
    ),
    _kvstore("half a step", "D5.kvstore/weight_first D5.kvstore/weight_last", ("rate=1.0", "rate=0.5")),
    _kvstore(
        "a server that fails",
        "D5.kvstore/worst_exit_code",
        ("= cluster.start()", '= [*cluster.start(), subprocess.Popen(["false"])]'),
        before="import subprocess\n",
    ),
    _mxnet("singletons", "D0/D5.mpi D5.mpi/weight_first D5.mpi/weight_last", before=SINGLETONS),
    _mxnet(
        "no averaging",
        "D5.mpi/weight_first D5.mpi/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _mxnet_train("singletons", "D0/D5.mpi-train", before=SINGLETONS),
    _mxnet_train(
        "gradients not added",
        "D5.mpi-train/parameter_hash D5.mpi-train/losses-as-one-rank D5.mpi-train/parameters-as-one-rank",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _mxnet_train(
        "all on one share",
        "D5.mpi-train/losses-as-one-rank D5.mpi-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _mxnet_train("fewer steps", "D5.mpi-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
)
