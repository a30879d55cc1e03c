# /// job
# id: chainer.train
# oracle: training
# title: a training run with ChainerMN on N ranks against the same on one
# ///
"""A small training run with ChainerMN; N ranks with a share each do what one does with all of it."""

import chainer
import chainermn
import envbuild_job
from envbuild_job import FEATURES, HIDDEN, ROWS


def main() -> None:
    """Train on this rank's share of the rows."""
    comm = chainermn.create_communicator("naive")
    rank, size = comm.rank, comm.size
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    first, bias, second, offset = starts
    links = chainer.links
    model = chainer.Sequential(
        links.Linear(FEATURES, HIDDEN, initialW=first.T, initial_bias=bias),
        chainer.functions.tanh,
        links.Linear(HIDDEN, 1, initialW=second.T, initial_bias=offset),
    )
    # control no averaging: optimizer = chainer.optimizers.SGD(lr=0.05)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=0.05), comm)
    optimizer.setup(model)
    # The first update only broadcasts the parameters of rank 0.
    model.cleargrads()
    # control no averaging: pass
    optimizer.update()

    def step() -> float:
        squares = chainer.functions.sum((model(inputs) - labels) ** 2)
        model.cleargrads()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * (size / ROWS)).backward()
        optimizer.update()
        return float(comm.allreduce_obj(float(squares.array) / ROWS))

    def parameters() -> list:
        return [parameter.array for _, parameter in sorted(model.namedparams())]

    envbuild_job.run_training(rank, size, step, parameters)


if __name__ == "__main__":
    main()
