"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import cntk
import envbuild_job
import numpy as np
from cntk.train.distributed import Communicator, data_parallel_distributed_learner
from envbuild_job import FEATURES, ROWS, STEPS


def main():
    """Train, and report losses, parameters and their hash."""
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
    trainer = cntk.Trainer(found, (loss, None), [data_parallel_distributed_learner(local)])

    losses = []
    for _ in range(STEPS):
        trainer.train_minibatch({inputs: rows, labels: wanted})
        # CNTK's own average over the rows of all ranks.
        losses.append(float(trainer.previous_minibatch_loss_average))

    envbuild_job.report_training(rank, size, losses, [parameter.value for parameter in parameters])
    Communicator.finalize()


if __name__ == "__main__":
    main()
