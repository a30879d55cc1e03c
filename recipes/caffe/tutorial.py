"""From Caffe's notebook on classification: a net from a file, one forward pass."""

from pathlib import Path

import caffe

Path("net.prototxt").write_text("""
input: "data" input_shape { dim: 1 dim: 3 }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
""")
caffe.set_mode_cpu()
net = caffe.Net("net.prototxt", caffe.TEST)
print(net.forward()["ip"])
