# /// job
# id: caffe.averaging
# oracle: averaging
# title: Caffe's gradients averaged by MPI allreduce, exact oracle
# ///
"""Gradients of Caffe averaged over MPI through pycaffe."""

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
    """Average gradients."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    solver = solving.solver(NET, learning_rate=1.0)
    net = solver.net
    net.blobs["one"].data[...] = 1
    net.blobs["wanted"].data[...] = -size * (rank + 1)

    def step() -> float:
        net.clear_param_diffs()
        net.forward()
        net.backward()
        gradient = np.array(net.params["w"][0].diff)
        # control no averaging: gradient *= size
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        net.params["w"][0].diff[...] = gradient / size
        solver.apply_update()
        return float(net.params["w"][0].data[0, 0])

    envbuild_job.run_averaging(rank, size, step)


if __name__ == "__main__":
    main()
