# /// job
# id: theano.averaging
# oracle: averaging
# title: Theano's gradients averaged by MPI allreduce, exact oracle
# expect: {compiled: 1}
# hint: gradients were not averaged over all ranks, or Theano found no compiler
# controls:
#   without a compiler: [compiled]
# ///
"""Gradients of Theano averaged over MPI."""

import compiling
import envbuild_job
import numpy as np
from mpi4py import MPI

# control without a compiler: theano = compiling.imported()
# control without a compiler: theano.config.cxx = ""
theano = compiling.imported()


def main() -> None:
    """Average gradients."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    w = theano.shared(np.float64(0.0), name="w")
    loss = 0.5 * theano.tensor.sqr(w + float(size * (rank + 1)))
    gradient_of = theano.function([], theano.grad(loss, w))

    def step() -> float:
        gradient = np.array(gradient_of())
        # control no averaging: gradient *= size
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        w.set_value(w.get_value() - gradient / size)
        return float(w.get_value())

    envbuild_job.run_averaging(rank, size, step, compiled=int(bool(theano.config.cxx)))


if __name__ == "__main__":
    main()
