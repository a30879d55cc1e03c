"""ChainerMN's multi-node optimizer, with an exact oracle.

The weight w starts at r on rank r; the first update broadcasts rank 0's, and
does no more. Then rank r's loss is ½(w + N(r+1))²: with gradients averaged and
a learning rate of 1, one step ends at exactly -N(N+1)/2, and further steps
leave it there. ChainerMN averages by multiplying with 1/N, which is no exact
number for every N: w is a float64, and the float32 nearest to it is exact.
"""

import chainer
import chainermn
import envbuild_job
import numpy as np


class Weight(chainer.Link):
    """One number."""

    def __init__(self, start: int) -> None:
        super().__init__()
        with self.init_scope():
            self.w = chainer.Parameter(np.array([start], dtype=np.float64))


def main() -> None:
    """Sum over all ranks, broadcast, take three steps, and report."""
    comm = chainermn.create_communicator("naive")
    rank, size = comm.rank, comm.size
    model = Weight(rank)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1.0), comm)
    optimizer.setup(model)

    weights = []
    for _ in range(4):
        loss = chainer.functions.sum(0.5 * (model.w + size * (rank + 1)) ** 2)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        weights.append(float(np.float32(model.w.array[0])))

    envbuild_job.report(
        rank=rank,
        size=size,
        sum=comm.allreduce_obj(rank + 1),
        weight_begun=weights[0],
        weight_first=weights[1],
        weight_last=weights[-1],
    )


if __name__ == "__main__":
    main()
