"""XLA's kernels and cuBLAS on this rank's GPU; all numbers are whole, so the results are exact.

A product of matrices of ones is their inner dimension, and the squares below n add up to (n-1)n(2n-1)/6.
"""

import envbuild_job
import jax
import jax.numpy as jnp
import processes

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
        gpus=processes.gpus(),
        squares=int((numbers * numbers).sum()),
        **values,
    )


if __name__ == "__main__":
    main()
