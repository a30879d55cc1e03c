"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import numpy as np
import solving
from mpi4py import MPI

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25
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
    """Train, and report losses, parameters and their hash."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    random = np.random.RandomState(2026)
    rows = random.randn(ROWS, FEATURES)
    wanted = np.sin(rows).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    count = own.stop - own.start
    weight = 2.0 * count / ROWS
    solver = solving.solver(
        NET.format(own=count, features=FEATURES, hidden=HIDDEN, weight=weight), learning_rate=0.05
    )
    net = solver.net
    net.blobs["rows"].data[...] = rows[own]
    net.blobs["wanted"].data[...] = wanted[own]
    parameters = [blob for name in ("first", "second") for blob in net.params[name]]
    for blob in parameters:
        blob.data[...] = random.randn(*blob.data.shape) / np.sqrt(blob.data.shape[-1])

    losses = []
    for _ in range(STEPS):
        net.clear_param_diffs()
        share = weight * float(net.forward()["loss"])
        net.backward()
        for blob in parameters:
            gradient = np.array(blob.diff)
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
            blob.diff[...] = gradient
        solver.apply_update()
        losses.append(comm.allreduce(share, op=MPI.SUM))

    flat = np.concatenate([blob.data.ravel() for blob in parameters])
    envbuild_job.report(
        rank=rank,
        size=size,
        steps=len(losses),
        losses=losses,
        parameters=flat.tolist(),
        parameter_hash=hashlib.sha256(flat.tobytes()).hexdigest(),
    )


if __name__ == "__main__":
    main()
