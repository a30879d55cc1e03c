# /// job
# id: chainer.averaging
# oracle: averaging
# title: ChainerMN's multi-node optimizer over MPI, exact oracle
# expect: {sum: n*(n+1)//2, weight_begun: 0}
# controls:
#   # The first update is a step then.
#   no averaging: {fails: [weight_begun, weight_first, weight_last], least_ranks: 2}
# ///
"""ChainerMN's multi-node optimizer.

The weight starts at r on rank r; the first update broadcasts that of rank 0 and does nothing else. ChainerMN
averages by multiplying with 1/N: w is a float64.
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
    """Sum over all ranks, broadcast, and average gradients."""
    comm = chainermn.create_communicator("naive")
    rank, size = comm.rank, comm.size
    model = Weight(rank)
    # control no averaging: optimizer = chainer.optimizers.SGD(lr=1.0)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(lr=1.0), comm)
    optimizer.setup(model)

    def step() -> float:
        loss = chainer.functions.sum(0.5 * (model.w + size * (rank + 1)) ** 2)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        return float(np.float32(model.w.array[0]))

    total = comm.allreduce_obj(rank + 1)
    envbuild_job.run_averaging(rank, size, step, sum=total, weight_begun=step())


if __name__ == "__main__":
    main()
