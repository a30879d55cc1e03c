# /// job
# id: tensorflow-mpi.train
# oracle: training
# title: a training run on N ranks over MPI against the same on one
# ///
"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import envbuild_job
import numpy as np
import tensorflow as tf
from envbuild_job import FEATURES, HIDDEN, ROWS
from mpi4py import MPI


def main() -> None:
    """Train on this rank's share of the rows."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    layers = [tf.keras.layers.Dense(HIDDEN, activation="tanh"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), *layers])
    model.set_weights(starts)
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.05)

    def step() -> float:
        with tf.GradientTape() as tape:
            # A share of the mean over all rows; shares of any size add up to it.
            loss = tf.reduce_sum(tf.square(model(inputs) - labels)) / ROWS
        gradients = [
            np.array(gradient.numpy()) for gradient in tape.gradient(loss, model.trainable_variables)
        ]
        for gradient in gradients:
            # control no averaging: pass
            comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        optimizer.apply_gradients(zip(map(tf.constant, gradients), model.trainable_variables, strict=True))
        return float(comm.allreduce(float(loss.numpy()), op=MPI.SUM))

    def arrays() -> list:
        return [variable.numpy() for variable in model.trainable_variables]

    envbuild_job.run_training(rank, size, step, arrays)


if __name__ == "__main__":
    main()
