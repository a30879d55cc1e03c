"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import cntk
import envbuild_job
import numpy as np
from cntk.train.distributed import Communicator, data_parallel_distributed_learner

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main():
    """Train, and report losses, parameters and their hash."""
    rank, size = Communicator.rank(), Communicator.num_workers()
    random = np.random.RandomState(2026)
    rows = random.randn(ROWS, FEATURES).astype(np.float32)
    wanted = (np.sin(rows).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)

    def parameter(*shape):
        start = random.randn(*shape) / np.sqrt(shape[0])
        return cntk.parameter(init=start.astype(np.float32), dtype=np.float32)

    parameters = [parameter(FEATURES, HIDDEN), parameter(HIDDEN), parameter(HIDDEN, 1), parameter(1)]
    first, first_bias, second, second_bias = parameters
    inputs = cntk.input_variable((FEATURES,), dtype=np.float32)
    labels = cntk.input_variable((1,), dtype=np.float32)
    hidden = cntk.tanh(cntk.times(inputs, first) + first_bias)
    found = cntk.times(hidden, second) + second_bias
    loss = cntk.squared_error(found, labels)
    # The learner adds the gradients of all rows on all ranks: a share of the mean for each.
    local = cntk.sgd(parameters, cntk.learning_parameter_schedule_per_sample(0.05 / ROWS))
    trainer = cntk.Trainer(found, (loss, None), [data_parallel_distributed_learner(local)])

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for _ in range(STEPS):
        trainer.train_minibatch({inputs: rows[own], labels: wanted[own]})
        # CNTK's own average over the rows of all ranks.
        losses.append(float(trainer.previous_minibatch_loss_average))

    flat = np.concatenate([each.value.ravel() for each in parameters])
    envbuild_job.report(
        rank=rank,
        size=size,
        steps=len(losses),
        losses=losses,
        parameters=flat.tolist(),
        parameter_hash=hashlib.sha256(flat.tobytes()).hexdigest(),
    )
    Communicator.finalize()


if __name__ == "__main__":
    main()
