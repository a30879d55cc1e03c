"""Gradients of Theano averaged over MPI, with an exact oracle.

The variable w starts at 0; rank r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the ranks and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there.
"""

import compiling
import envbuild_job
import numpy as np
from mpi4py import MPI

theano = compiling.imported()


def main() -> None:
    """Take three steps and report."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    w = theano.shared(np.float64(0.0), name="w")
    loss = 0.5 * theano.tensor.sqr(w + float(size * (rank + 1)))
    gradient_of = theano.function([], theano.grad(loss, w))

    weights = []
    for _ in range(3):
        gradient = np.array(gradient_of())
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        w.set_value(w.get_value() - gradient / size)
        weights.append(float(w.get_value()))

    envbuild_job.report(
        rank=rank,
        size=size,
        compiled=int(bool(theano.config.cxx)),
        weight_first=weights[0],
        weight_last=weights[-1],
    )


if __name__ == "__main__":
    main()
