# /// job
# id: caffe.train
# oracle: training
# title: a training run on N ranks over MPI against the same on one
# ///
"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import envbuild_job
import numpy as np
import solving
from envbuild_job import FEATURES, HIDDEN, ROWS
from mpi4py import MPI

# Caffe's loss is half the mean over its own rows; so weighed, shares of any size add up to the mean over all.
NET = """
layer {{ name: "rows" type: "Input" top: "rows" input_param {{ shape {{ dim: {own} dim: {features} }} }} }}
layer {{ name: "wanted" type: "Input" top: "wanted" input_param {{ shape {{ dim: {own} dim: 1 }} }} }}
layer {{
  name: "first" type: "InnerProduct" bottom: "rows" top: "first"
  inner_product_param {{ num_output: {hidden} }}
}}
layer {{ name: "tanh" type: "TanH" bottom: "first" top: "tanh" }}
layer {{
  name: "second" type: "InnerProduct" bottom: "tanh" top: "found"
  inner_product_param {{ num_output: 1 }}
}}
layer {{
  name: "loss" type: "EuclideanLoss" bottom: "found" bottom: "wanted" top: "loss" loss_weight: {weight}
}}
"""


def main() -> None:
    """Train on this rank's share of the rows."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    weight = 2.0 * len(inputs) / ROWS
    solver = solving.solver(
        NET.format(own=len(inputs), features=FEATURES, hidden=HIDDEN, weight=weight), learning_rate=0.05
    )
    net = solver.net
    net.blobs["rows"].data[...] = inputs
    net.blobs["wanted"].data[...] = labels
    parameters = [blob for name in ("first", "second") for blob in net.params[name]]
    for place, blob in enumerate(parameters):
        blob.data[...] = starts[place].T

    def step() -> float:
        net.clear_param_diffs()
        share = weight * float(net.forward()["loss"])
        net.backward()
        for blob in parameters:
            gradient = np.array(blob.diff)
            # control no averaging: pass
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
            blob.diff[...] = gradient
        solver.apply_update()
        return float(comm.allreduce(share, op=MPI.SUM))

    envbuild_job.run_training(rank, size, step, lambda: [blob.data for blob in parameters])


if __name__ == "__main__":
    main()
