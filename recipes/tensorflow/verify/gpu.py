# /// job
# id: tensorflow.gpu
# title: TensorFlow's own kernels and cuBLAS on each worker's GPU, exact results
# devices: [gpu]
# expect:
#   bfloat16_least: 4096
#   bfloat16_most: 4096
#   float32_least: 4096
#   float32_most: 4096
#   squares: (2**20 - 1) * 2**20 * (2**21 - 1) // 6
# hint: is the driver new enough for CUDA 12.9?
# controls:
#   smaller matrices: [bfloat16_least, float32_most]
#   no squares, and no GPU reported: [squares, gpus]
# ///
"""TensorFlow's own kernels and cuBLAS on this rank's GPU; all numbers are whole, so results are exact.

A product of matrices of ones is their inner dimension, and the squares below n add up to (n-1)n(2n-1)/6.
"""

import cluster
import envbuild_gpus
import envbuild_job
import tensorflow as tf

# control smaller matrices: SIDE = 2048
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
        # control no squares, and no GPU reported: squares = tf.reduce_sum(numbers)
        squares = tf.reduce_sum(numbers * numbers)
    # control no squares, and no GPU reported: gpus = []
    gpus = envbuild_gpus.own_ids()
    envbuild_job.report(rank=rank, size=size, gpus=gpus, squares=int(squares.numpy()), **values)


if __name__ == "__main__":
    main()
