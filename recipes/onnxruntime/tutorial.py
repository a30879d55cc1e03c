"""From ONNX's introduction and ONNX Runtime's "Get started": write a model, run it."""

import numpy as np
import onnx
import onnxruntime

graph = onnx.parser.parse_graph("agraph (float[N] x) => (float[N] y) { y = Add(x, x) }")
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print(session.run(None, {"x": np.ones(2, np.float32)}))
