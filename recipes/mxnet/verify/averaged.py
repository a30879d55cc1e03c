# /// job
# id: mxnet.averaging
# oracle: averaging
# title: MXNet's gradients averaged by MPI allreduce, exact oracle
# ///
"""Gradients of MXNet averaged over MPI."""

import envbuild_job
import mxnet as mx
from mpi4py import MPI


def main() -> None:
    """Average gradients."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    w = mx.nd.zeros(1, dtype="float64")
    w.attach_grad()
    optimizer = mx.optimizer.SGD(learning_rate=1.0)

    def step() -> float:
        with mx.autograd.record():
            loss = 0.5 * mx.nd.square(w + size * (rank + 1))
        loss.backward()
        gradient = w.grad.asnumpy()
        # control no averaging: gradient *= size
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        optimizer.update(0, w, mx.nd.array(gradient / size, dtype="float64"), None)
        return float(w.asscalar())

    envbuild_job.run_averaging(rank, size, step)


if __name__ == "__main__":
    main()
