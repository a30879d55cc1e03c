"""A gradient of TensorFlow's, summed by mpi4py as in its tutorial, on one rank."""

import tensorflow as tf
from mpi4py import MPI

x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    y = x**2
print(MPI.COMM_WORLD.allreduce(tape.gradient(y, x).numpy(), op=MPI.SUM))
