"""Gradients of Caffe averaged over MPI through pycaffe, with an exact oracle.

The weight w starts at 0; rank r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the ranks and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there.
"""

import envbuild_job
import numpy as np
import solving
from mpi4py import MPI

NET = """
layer { name: "one" type: "Input" top: "one" input_param { shape { dim: 1 dim: 1 } } }
layer { name: "wanted" type: "Input" top: "wanted" input_param { shape { dim: 1 dim: 1 } } }
layer {
  name: "w" type: "InnerProduct" bottom: "one" top: "found"
  inner_product_param { num_output: 1 bias_term: false weight_filler { type: "constant" value: 0 } }
}
layer { name: "loss" type: "EuclideanLoss" bottom: "found" bottom: "wanted" top: "loss" }
"""


def main() -> None:
    """Take three steps and report."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    solver = solving.solver(NET, learning_rate=1.0)
    net = solver.net
    net.blobs["one"].data[...] = 1
    net.blobs["wanted"].data[...] = -size * (rank + 1)

    weights = []
    for _ in range(3):
        net.clear_param_diffs()
        net.forward()
        net.backward()
        gradient = np.array(net.params["w"][0].diff)
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        net.params["w"][0].diff[...] = gradient / size
        solver.apply_update()
        weights.append(float(net.params["w"][0].data[0, 0]))

    envbuild_job.report(rank=rank, size=size, weight_first=weights[0], weight_last=weights[-1])


if __name__ == "__main__":
    main()
