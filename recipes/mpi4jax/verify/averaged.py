"""Gradients averaged by mpi4jax within a compiled function, with an exact oracle.

The weight w starts at 0; rank r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the ranks and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there. A compiled
average may be a product with 1/N, which is no exact number for every N: w is a
float64, and the float32 nearest to it is exact.
"""

import envbuild_job
import jax
import jax.numpy as jnp
import mpi4jax
from mpi4py import MPI


def main() -> None:
    """Sum and broadcast over all ranks, take three steps, and report."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()

    def loss(w: jax.Array) -> jax.Array:
        return 0.5 * (w + size * (rank + 1)) ** 2

    @jax.jit
    def step(w: jax.Array) -> jax.Array:
        return w - 1.0 * mpi4jax.allreduce(jax.grad(loss)(w), op=MPI.SUM, comm=comm) / size

    @jax.jit
    def told(number: jax.Array) -> "tuple[jax.Array, jax.Array]":
        total = mpi4jax.allreduce(number, op=MPI.SUM, comm=comm)
        return total, mpi4jax.bcast(number, size - 1, comm=comm)

    total, from_last = told(jnp.array(rank + 1, dtype=jnp.int64))
    w = jnp.array(0.0, dtype=jnp.float64)
    weights = []
    for _ in range(3):
        w = step(w)
        weights.append(float(w.astype(jnp.float32)))

    envbuild_job.report(
        rank=rank,
        size=size,
        sum=int(total),
        from_last=int(from_last),
        weight_first=weights[0],
        weight_last=weights[-1],
    )


if __name__ == "__main__":
    main()
