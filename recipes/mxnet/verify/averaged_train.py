# /// job
# id: mxnet.train
# oracle: training
# title: a training run on N ranks over MPI against the same on one
# ///
"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import envbuild_job
import mxnet as mx
from envbuild_job import FEATURES, HIDDEN, ROWS
from mpi4py import MPI


def main() -> None:
    """Train on this rank's share of the rows."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    model = mx.gluon.nn.Sequential()
    model.add(mx.gluon.nn.Dense(HIDDEN, activation="tanh", in_units=FEATURES))
    model.add(mx.gluon.nn.Dense(1, in_units=HIDDEN))
    model.initialize()
    parameters = list(model.collect_params().values())
    for place, parameter in enumerate(parameters):
        parameter.set_data(mx.nd.array(starts[place].T))
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None)

    rows, wanted = mx.nd.array(inputs), mx.nd.array(labels)

    def step() -> float:
        with mx.autograd.record():
            # A share of the mean over all rows; shares of any size add up to it.
            loss = mx.nd.square(model(rows) - wanted).sum() / ROWS
        loss.backward()
        for parameter in parameters:
            gradient = parameter.grad().asnumpy()
            # control no averaging: pass
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
            parameter.grad()[:] = gradient
        trainer.step(batch_size=1)
        return float(comm.allreduce(float(loss.asscalar()), op=MPI.SUM))

    def arrays() -> list:
        return [parameter.data().asnumpy() for parameter in parameters]

    envbuild_job.run_training(rank, size, step, arrays)


if __name__ == "__main__":
    main()
