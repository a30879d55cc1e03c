"""Gradients of TensorFlow averaged over MPI, with an exact oracle.

The variable w starts at 0; rank r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the ranks and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there.
"""

import envbuild_job
import numpy as np
import tensorflow as tf
from mpi4py import MPI


def main() -> None:
    """Take three steps and report."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    w = tf.Variable(0.0, dtype=tf.float64)
    optimizer = tf.keras.optimizers.SGD(learning_rate=1.0)

    weights = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = 0.5 * tf.square(w + float(size * (rank + 1)))
        gradient = np.array(tape.gradient(loss, w).numpy())
        comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
        optimizer.apply_gradients([(tf.constant(gradient / size), w)])
        weights.append(float(w.numpy()))

    envbuild_job.report(rank=rank, size=size, weight_first=weights[0], weight_last=weights[-1])


if __name__ == "__main__":
    main()
