"""onnxruntime: its jobs, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_onnx = partial(control, "onnxruntime", "models")

CONTROLS = (
    _onnx("singletons", "D0/A1.onnxruntime", before=SINGLETONS),
    _onnx(
        "units that are not rectified",
        "A1.onnxruntime/below_least A1.onnxruntime/above_most",
        ('"Relu"', '"Identity"'),
    ),
    _onnx(
        "units negated instead", "A1.onnxruntime/below_most A1.onnxruntime/above_least", ('"Relu"', '"Neg"')
    ),
    _onnx(
        "weights a little off",
        "A1.onnxruntime/below_most A1.onnxruntime/above_least",
        ("[[3.0], [-2.0]]", "[[3.04], [-2.04]]"),
    ),
    # Of an image that holds PyTorch.
    _onnx(
        "exported without rectifiers",
        "A1.onnxruntime/below_least A1.onnxruntime/above_most",
        ("torch.nn.ReLU()", "torch.nn.Identity()"),
    ),
    _onnx("other writers on each rank", "A1.onnxruntime/writers", ("=writers,", "=writers[rank:],")),
)
