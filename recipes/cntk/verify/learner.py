# /// job
# id: cntk.learner
# title: CNTK's data-parallel distributed learner over MPI, exact oracle
# expect:
#   weight_first: -(n*(n+1)//2)
#   weight_last: -3*(n*(n+1)//2)
# hint: gradients were not added over all ranks
# controls:
#   gradients not added: {fails: [weight_first, weight_last], least_ranks: 2}
# ///
"""CNTK's own data-parallel learner over MPI.

The parameter w starts at 0; rank r's loss is (r+1)w, its gradient r+1. The
learner adds the gradients of all ranks and steps with a learning rate of 1 a
sample: each step takes exactly N(N+1)/2 from w.
"""

import cntk
import envbuild_job
import numpy as np
from cntk.train.distributed import Communicator, data_parallel_distributed_learner


def main():
    """Take three steps and report the weights."""
    rank, size = Communicator.rank(), Communicator.num_workers()
    w = cntk.parameter(shape=(1,), init=0, dtype=np.float32)
    factor = cntk.input_variable((1,), dtype=np.float32)
    loss = cntk.reduce_sum(w * factor)
    local = cntk.sgd([w], cntk.learning_parameter_schedule_per_sample(1.0))
    # control gradients not added: trainer = cntk.Trainer(loss, (loss, None), [local])
    trainer = cntk.Trainer(loss, (loss, None), [data_parallel_distributed_learner(local)])

    weights = []
    for _ in range(3):
        trainer.train_minibatch({factor: np.array([[rank + 1]], dtype=np.float32)})
        weights.append(float(w.value[0]))

    envbuild_job.report(rank=rank, size=size, weight_first=weights[0], weight_last=weights[-1])
    Communicator.finalize()


if __name__ == "__main__":
    main()
