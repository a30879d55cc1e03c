"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import numpy as np
import tensorflow as tf
from mpi4py import MPI

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    tf.keras.utils.set_random_seed(2026)
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(np.float32)
    labels = (np.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)
    layers = [tf.keras.layers.Dense(HIDDEN, activation="tanh"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), *layers])
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.05)

    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    losses = []
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            # A share of the mean over all rows; shares of any size add up to it.
            loss = tf.reduce_sum(tf.square(model(inputs[own]) - labels[own])) / ROWS
        gradients = [np.array(each.numpy()) for each in tape.gradient(loss, model.trainable_variables)]
        for gradient in gradients:
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        optimizer.apply_gradients(zip(map(tf.constant, gradients), model.trainable_variables, strict=True))
        losses.append(comm.allreduce(float(loss.numpy()), op=MPI.SUM))

    flat = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
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
