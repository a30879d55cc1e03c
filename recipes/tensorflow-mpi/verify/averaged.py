# /// job
# id: tensorflow-mpi.averaging
# oracle: averaging
# title: TensorFlow's gradients averaged by MPI allreduce, exact oracle
# ///
"""Gradients of TensorFlow averaged over MPI."""

import envbuild_job
import numpy as np
import tensorflow as tf
from mpi4py import MPI


def main() -> None:
    """Average gradients."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    w = tf.Variable(0.0, dtype=tf.float64)
    optimizer = tf.keras.optimizers.SGD(learning_rate=1.0)

    def step() -> float:
        with tf.GradientTape() as tape:
            loss = 0.5 * tf.square(w + float(size * (rank + 1)))
        gradient = np.array(tape.gradient(loss, w).numpy())
        # control no averaging: gradient *= size
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        optimizer.apply_gradients([(tf.constant(gradient / size), w)])
        return float(w.numpy())

    envbuild_job.run_averaging(rank, size, step)


if __name__ == "__main__":
    main()
