"""caffe: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_caffe = partial(control, "caffe", "averaged")
_caffe_train = partial(control, "caffe", "train")

CONTROLS = (
    _caffe("singletons", "D0/D11.caffe D11.caffe/weight_first D11.caffe/weight_last", before=SINGLETONS),
    _caffe(
        "no averaging",
        "D11.caffe/weight_first D11.caffe/weight_last",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "gradient *= size"),
    ),
    _caffe_train("singletons", "D0/D11.caffe-train", before=SINGLETONS),
    _caffe_train(
        "gradients not added",
        "D11.caffe-train/losses-as-one-rank D11.caffe-train/parameters-as-one-rank "
        "D11.caffe-train/parameter_hash",
        ("comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)", "pass"),
    ),
    _caffe_train(
        "all on one share",
        "D11.caffe-train/losses-as-one-rank D11.caffe-train/parameters-as-one-rank",
        ("slice(rank * ROWS // size, (rank + 1) * ROWS // size)", "slice(0, ROWS // size)"),
    ),
    _caffe_train("fewer steps", "D11.caffe-train/steps", ("STEPS = 64, 8, 16, 25", "STEPS = 64, 8, 16, 24")),
)
