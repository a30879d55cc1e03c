"""TensorFlow's own kernels and cuBLAS on this rank's GPU; all numbers are whole, so results are exact.

A product of matrices of ones is their inner dimension, and the squares below n add up to (n-1)n(2n-1)/6.
"""

import cluster
import envbuild_job
import tensorflow as tf

SIDE = 4096
NUMBERS = 1 << 20


def main() -> None:
    """Compute on the GPU and report."""
    rank, size = envbuild_job.launched()
    cluster.choose_devices()
    values = {}
    with tf.device("/GPU:0"):
        for name in ("bfloat16", "float32"):
            ones = tf.ones((SIDE, SIDE), dtype=name)
            product = tf.cast(ones @ ones, tf.float64)
            values[f"{name}_least"] = int(tf.reduce_min(product).numpy())
            values[f"{name}_most"] = int(tf.reduce_max(product).numpy())
        numbers = tf.range(NUMBERS, dtype=tf.int64)
        squares = tf.reduce_sum(numbers * numbers)
    envbuild_job.report(rank=rank, size=size, gpus=cluster.gpus(), squares=int(squares.numpy()), **values)


if __name__ == "__main__":
    main()
