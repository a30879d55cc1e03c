"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import compiling
import envbuild_job
import numpy as np
from mpi4py import MPI

theano = compiling.imported()

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    random = np.random.RandomState(2026)
    rows = random.randn(ROWS, FEATURES)
    wanted = np.sin(rows).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
    parameters = [theano.shared(random.randn(*shape) / np.sqrt(shape[0])) for shape in shapes]
    first, first_bias, second, second_bias = parameters

    inputs, labels = theano.tensor.dmatrix("inputs"), theano.tensor.dmatrix("labels")
    hidden = theano.tensor.tanh(inputs.dot(first) + first_bias)
    found = hidden.dot(second) + second_bias
    # A share of the mean over all rows; shares of any size add up to it.
    loss = theano.tensor.sqr(found - labels).sum() / ROWS
    gradients_of = theano.function([inputs, labels], [loss, *theano.grad(loss, parameters)])

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for _ in range(STEPS):
        share, *gradients = map(np.array, gradients_of(rows[own], wanted[own]))
        for place, gradient in enumerate(gradients):
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
            parameters[place].set_value(parameters[place].get_value() - 0.05 * gradient)
        losses.append(comm.allreduce(float(share), op=MPI.SUM))

    flat = np.concatenate([each.get_value().ravel() for each in parameters])
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
