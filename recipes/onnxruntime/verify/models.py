# /// job
# id: onnxruntime.models
# title: an ONNX model, by hand and from each framework of the image, run on each rank with an exact oracle
# expect:
#   below_least: -2*(10 + r) + 1
#   below_most: -2*(10 + r) + 1
#   above_least: 3*(10 + r) + 1
#   above_most: 3*(10 + r) + 1
# same_on_all_ranks: [writers]
# hint: the runtime computes something else than the model's writer meant
# controls:
#   units that are not rectified: [below_least, above_most]
#   exported without rectifiers: {fails: [below_least, above_most], needs: [pytorch]}
#   exported with a bias that is not a number:
#     fails: [below_least, below_most, above_least, above_most]
#     needs: [pytorch]
#   other writers on each rank: {fails: [writers], least_ranks: 2}
# ///
"""An ONNX model runs in ONNX Runtime with exact results.

The model is y = 3·relu(x - 10) - 2·relu(10 - x) + 1, a network with one hidden layer of two units. It is
written by hand and, if PyTorch is in the image, exported by it as well. The rows are x = -r and x = 20 + r.
All numbers are small integers, so float32 is exact.
"""

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import envbuild_job
import numpy as np
import onnx
import onnxruntime

TO_HIDDEN, HIDDEN_BIAS = [[1.0, -1.0]], [-10.0, 10.0]
TO_OUTPUT, OUTPUT_BIAS = [[3.0], [-2.0]], [1.0]


def by_hand(path: Path) -> None:
    """Write the model node by node."""
    values = {
        "to_hidden": TO_HIDDEN,
        "hidden_bias": HIDDEN_BIAS,
        "to_output": TO_OUTPUT,
        "output_bias": OUTPUT_BIAS,
    }
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "to_hidden", "hidden_bias"], ["hidden"]),
        # control units that are not rectified: onnx.helper.make_node("Identity", ["hidden"], ["active"]),
        onnx.helper.make_node("Relu", ["hidden"], ["active"]),
        onnx.helper.make_node("Gemm", ["active", "to_output", "output_bias"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 1])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 1])],
        [onnx.numpy_helper.from_array(np.array(value, np.float32), name) for name, value in values.items()],
    )
    # Both numbers are older than either package: any runtime of these years reads them.
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def by_torch(path: Path) -> None:
    """Export the model from PyTorch."""
    torch = importlib.import_module("torch")
    # control exported without rectifiers: activation = torch.nn.Identity()
    activation = torch.nn.ReLU()
    network = torch.nn.Sequential(torch.nn.Linear(1, 2), activation, torch.nn.Linear(2, 1))
    # PyTorch holds the transposed matrices.
    # control exported with a bias that is not a number: bias = [float("nan")]
    bias = OUTPUT_BIAS
    values = (np.transpose(TO_HIDDEN), HIDDEN_BIAS, np.transpose(TO_OUTPUT), bias)
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(np.array(value, np.float32)))
    torch.onnx.export(network.eval(), (torch.zeros(2, 1),), path, dynamo=True, verbose=False)


WRITERS: "dict[str, Callable[[Path], None]]" = {"onnx": by_hand, "torch": by_torch}


def outputs(path: Path, rank: int) -> "list[float]":
    """Run a model on two rows, one on each side of 10."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rows = np.array([[-rank], [20 + rank]], np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: rows})
    return [float(value) for value in found.ravel()]


def main() -> None:
    """Let each writer write the model, run it, and report."""
    rank, size = envbuild_job.launched()
    writers = [name for name in WRITERS if importlib.util.find_spec(name)]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for name in writers:
            path = Path(directory, f"{name}.onnx")
            WRITERS[name](path)
            found.append(outputs(path, rank))
    below, above = zip(*found, strict=True)
    envbuild_job.report(
        rank=rank,
        size=size,
        # control other writers on each rank: writers=writers[rank:],
        writers=writers,
        # NumPy's own: where one is NaN, so is the result.
        below_least=float(np.min(below)),
        below_most=float(np.max(below)),
        above_least=float(np.min(above)),
        above_most=float(np.max(above)),
    )


if __name__ == "__main__":
    main()
