# /// job
# id: cntk.train
# oracle: training
# ///
"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import cntk
import envbuild_job
import numpy as np
from cntk.train.distributed import Communicator, data_parallel_distributed_learner
from envbuild_job import FEATURES, ROWS


def main():
    """Train on this rank's share of the rows."""
    rank, size = Communicator.rank(), Communicator.num_workers()
    rows, wanted, starts = envbuild_job.training_data(rank, size)
    parameters = [cntk.parameter(init=start, dtype=np.float32) for start in starts]
    first, first_bias, second, second_bias = parameters
    inputs = cntk.input_variable((FEATURES,), dtype=np.float32)
    labels = cntk.input_variable((1,), dtype=np.float32)
    hidden = cntk.tanh(cntk.times(inputs, first) + first_bias)
    found = cntk.times(hidden, second) + second_bias
    loss = cntk.squared_error(found, labels)
    # The learner adds the gradients of all rows on all ranks: a share of the mean for each.
    local = cntk.sgd(parameters, cntk.learning_parameter_schedule_per_sample(0.05 / ROWS))
    # control no averaging: trainer = cntk.Trainer(found, (loss, None), [local])
    trainer = cntk.Trainer(found, (loss, None), [data_parallel_distributed_learner(local)])

    def step():
        trainer.train_minibatch({inputs: rows, labels: wanted})
        # CNTK's own average over the rows of all ranks.
        return trainer.previous_minibatch_loss_average

    envbuild_job.run_training(rank, size, step, lambda: [parameter.value for parameter in parameters])
    Communicator.finalize()


if __name__ == "__main__":
    main()
