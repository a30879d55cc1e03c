# /// job
# id: theano.train
# oracle: training
# title: a training run on N ranks over MPI against the same on one
# compare_with_single: {losses: 1.0e-10, parameters: 1.0e-10}
# ///
"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import compiling
import envbuild_job
import numpy as np
from envbuild_job import ROWS
from mpi4py import MPI

theano = compiling.imported()


def main() -> None:
    """Train on this rank's share of the rows."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    rows, wanted, starts = envbuild_job.training_data(rank, size, "float64")
    parameters = [theano.shared(start) for start in starts]
    first, first_bias, second, second_bias = parameters

    inputs, labels = theano.tensor.dmatrix("inputs"), theano.tensor.dmatrix("labels")
    hidden = theano.tensor.tanh(inputs.dot(first) + first_bias)
    found = hidden.dot(second) + second_bias
    # A share of the mean over all rows; shares of any size add up to it.
    loss = theano.tensor.sqr(found - labels).sum() / ROWS
    gradients_of = theano.function([inputs, labels], [loss, *theano.grad(loss, parameters)])

    def step() -> float:
        share, *gradients = map(np.array, gradients_of(rows, wanted))
        for place, gradient in enumerate(gradients):
            # control no averaging: pass
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
            parameters[place].set_value(parameters[place].get_value() - 0.05 * gradient)
        return float(comm.allreduce(float(share), op=MPI.SUM))

    envbuild_job.run_training(rank, size, step, lambda: [parameter.get_value() for parameter in parameters])


if __name__ == "__main__":
    main()
