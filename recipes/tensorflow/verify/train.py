# /// job
# id: tensorflow.train
# oracle: training
# devices: [cpu, gpu]
# title: a training run on N workers against the same on one
# ///
"""A small training run; N workers with a share each of the batch do what one does with all of it."""

import cluster
import envbuild_gpus
import envbuild_job
import tensorflow as tf
from envbuild_job import ROWS


def main() -> None:
    """Train on this rank's share of the rows."""
    rank, size, port = cluster.start()
    strategy = cluster.strategy()
    port.close()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    with strategy.scope():
        parameters = [tf.Variable(start) for start in starts]

    given, wanted = tf.constant(inputs), tf.constant(labels)

    @tf.function
    def step() -> tf.Tensor:
        def replica() -> tf.Tensor:
            first, bias, second, offset = parameters
            with tf.GradientTape() as tape:
                found = tf.matmul(tf.tanh(tf.matmul(given, first) + bias), second) + offset
                # A share of the mean over all rows; shares of any size add up to it.
                loss = tf.reduce_sum(tf.square(found - wanted)) / ROWS
            gradients = tape.gradient(loss, parameters)
            context = tf.distribute.get_replica_context()
            # control no averaging: pass
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            for place, parameter in enumerate(parameters):
                parameter.assign_sub(0.05 * gradients[place])
            return context.all_reduce(tf.distribute.ReduceOp.SUM, loss)

        return strategy.run(replica)

    envbuild_job.run_training(
        rank,
        strategy.num_replicas_in_sync,
        lambda: float(step().numpy()),
        lambda: [parameter.numpy() for parameter in parameters],
        gpus=envbuild_gpus.own_ids(),
    )


if __name__ == "__main__":
    main()
