"""A small training run with ChainerMN; N ranks with a share each do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import chainer
import chainermn
import envbuild_job
import numpy as np

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    comm = chainermn.create_communicator("naive")
    rank, size = comm.rank, comm.size
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(np.float32)
    labels = (np.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)
    shapes = ((HIDDEN, FEATURES), (1, HIDDEN))
    starts = [(random.randn(*shape) / np.sqrt(shape[1])).astype(np.float32) for shape in shapes]
    links = chainer.links
    model = chainer.Sequential(
        links.Linear(FEATURES, HIDDEN, initialW=starts[0]),
        chainer.functions.tanh,
        links.Linear(HIDDEN, 1, initialW=starts[1]),
    )
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=0.05), comm)
    optimizer.setup(model)
    # The first update does nothing but broadcast what rank 0 begins with.
    model.cleargrads()
    optimizer.update()

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for _ in range(STEPS):
        squares = chainer.functions.sum((model(inputs[own]) - labels[own]) ** 2)
        model.cleargrads()
        # Gradients are averaged over ranks: so weighed, shares of any size make the mean over all rows.
        (squares * (size / ROWS)).backward()
        optimizer.update()
        losses.append(comm.allreduce_obj(float(squares.array) / ROWS))

    flat = np.concatenate([parameter.array.ravel() for _, parameter in sorted(model.namedparams())])
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
