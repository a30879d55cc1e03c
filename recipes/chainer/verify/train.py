"""A small training run with ChainerMN; N ranks with a share each do what one does with all of it."""

import chainer
import chainermn
import envbuild_job
from envbuild_job import FEATURES, HIDDEN, ROWS, STEPS


def main() -> None:
    """Train, and report losses, parameters and their hash."""
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
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=0.05), comm)
    optimizer.setup(model)
    # The first update does nothing but broadcast what rank 0 begins with.
    model.cleargrads()
    optimizer.update()

    losses = []
    for _ in range(STEPS):
        squares = chainer.functions.sum((model(inputs) - labels) ** 2)
        model.cleargrads()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * (size / ROWS)).backward()
        optimizer.update()
        losses.append(comm.allreduce_obj(float(squares.array) / ROWS))

    parameters = [parameter.array for _, parameter in sorted(model.namedparams())]
    envbuild_job.report_training(rank, size, losses, parameters)


if __name__ == "__main__":
    main()
