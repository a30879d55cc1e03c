"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import mxnet as mx
import numpy as np
from mpi4py import MPI

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(np.float32)
    labels = (np.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)
    model = mx.gluon.nn.Sequential()
    model.add(mx.gluon.nn.Dense(HIDDEN, activation="tanh", in_units=FEATURES))
    model.add(mx.gluon.nn.Dense(1, in_units=HIDDEN))
    model.initialize()
    parameters = list(model.collect_params().values())
    for parameter in parameters:
        start = random.randn(*parameter.shape) / np.sqrt(parameter.shape[-1])
        parameter.set_data(mx.nd.array(start.astype(np.float32)))
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None)

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    rows, wanted = mx.nd.array(inputs[own]), mx.nd.array(labels[own])
    losses = []
    for _ in range(STEPS):
        with mx.autograd.record():
            # A share of the mean over all rows; shares of any size add up to it.
            loss = mx.nd.square(model(rows) - wanted).sum() / ROWS
        loss.backward()
        for parameter in parameters:
            gradient = parameter.grad().asnumpy()
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
            parameter.grad()[:] = gradient
        trainer.step(batch_size=1)
        losses.append(comm.allreduce(float(loss.asscalar()), op=MPI.SUM))

    flat = np.concatenate([parameter.data().asnumpy().ravel() for parameter in parameters])
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
