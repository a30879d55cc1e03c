"""A small training run; N workers with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import cluster
import envbuild_job
import numpy as np
import tensorflow as tf

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    rank, size, port = cluster.start()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    port.close()
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(np.float32)
    labels = (np.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)
    shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
    starts = [(random.randn(*shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]
    with strategy.scope():
        parameters = [tf.Variable(start) for start in starts]

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    given, wanted = tf.constant(inputs[own]), tf.constant(labels[own])

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
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            for place, parameter in enumerate(parameters):
                parameter.assign_sub(0.05 * gradients[place])
            return context.all_reduce(tf.distribute.ReduceOp.SUM, loss)

        return strategy.run(replica)

    losses = [float(step().numpy()) for _ in range(STEPS)]
    flat = np.concatenate([parameter.numpy().ravel() for parameter in parameters])
    envbuild_job.report(
        rank=rank,
        size=strategy.num_replicas_in_sync,
        steps=len(losses),
        losses=losses,
        parameters=flat.tolist(),
        parameter_hash=hashlib.sha256(flat.tobytes()).hexdigest(),
    )


if __name__ == "__main__":
    main()
