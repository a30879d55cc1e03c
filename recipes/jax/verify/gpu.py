# /// job
# id: jax.gpu
# title: XLA's kernels and cuBLAS on each process's GPU, exact results
# devices: [gpu]
# expect:
#   bfloat16_least: 4096
#   bfloat16_most: 4096
#   float32_least: 4096
#   float32_most: 4096
#   squares: (2**20 - 1) * 2**20 * (2**21 - 1) // 6
# hint: is the driver new enough for the CUDA release of this variant?
# controls:
#   smaller matrices: [bfloat16_least, float32_most]
#   no squares, and no GPU reported: [squares, gpus]
# ///
"""XLA's kernels and cuBLAS on this rank's GPU; all numbers are whole, so the results are exact.

A product of matrices of ones is their inner dimension, and the squares below n add up to (n-1)n(2n-1)/6.
"""

import envbuild_gpus
import envbuild_job
import jax
import jax.numpy as jnp
import processes

# control smaller matrices: SIDE = 2048
SIDE = 4096
NUMBERS = 1 << 20


def main() -> None:
    """Compute on the GPU and report."""
    rank, size, _ = processes.start()
    values = {}
    for name in ("bfloat16", "float32"):
        ones = jnp.ones((SIDE, SIDE), dtype=name)
        product = jax.jit(jnp.matmul)(ones, ones)
        values[f"{name}_least"], values[f"{name}_most"] = int(product.min()), int(product.max())
    numbers = jnp.arange(NUMBERS, dtype=jnp.int64)
    envbuild_job.report(
        rank=rank,
        size=size,
        # control no squares, and no GPU reported: gpus=[],
        gpus=envbuild_gpus.own_ids(),
        # control no squares, and no GPU reported: squares=int(numbers.sum()),
        squares=int((numbers * numbers).sum()),
        **values,
    )


if __name__ == "__main__":
    main()
