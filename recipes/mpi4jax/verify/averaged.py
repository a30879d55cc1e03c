# /// job
# id: mpi4jax.averaging
# oracle: averaging
# title: gradients averaged over MPI within a compiled function, exact oracle
# expect: {sum: n*(n+1)//2, from_last: n}
# controls:
#   what rank 0 has: {fails: [from_last], least_ranks: 2}
# ///
"""Gradients averaged by mpi4jax within a compiled function, which may multiply with 1/N: w is a float64."""

import envbuild_job
import jax
import jax.numpy as jnp
import mpi4jax
from mpi4py import MPI


def main() -> None:
    """Sum and broadcast over all ranks, and average gradients."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()

    def loss(w: jax.Array) -> jax.Array:
        return 0.5 * (w + size * (rank + 1)) ** 2

    @jax.jit
    def averaged(w: jax.Array) -> jax.Array:
        # control no averaging: return w - jax.grad(loss)(w)
        return w - mpi4jax.allreduce(jax.grad(loss)(w), op=MPI.SUM, comm=comm) / size

    @jax.jit
    def collected(number: jax.Array) -> "tuple[jax.Array, jax.Array]":
        total = mpi4jax.allreduce(number, op=MPI.SUM, comm=comm)
        # control what rank 0 has: return total, mpi4jax.bcast(number, 0, comm=comm)
        return total, mpi4jax.bcast(number, size - 1, comm=comm)

    w = jnp.array(0.0, dtype=jnp.float64)

    def step() -> float:
        nonlocal w
        w = averaged(w)
        return float(w.astype(jnp.float32))

    total, from_last = collected(jnp.array(rank + 1, dtype=jnp.int64))
    envbuild_job.run_averaging(rank, size, step, sum=int(total), from_last=int(from_last))


if __name__ == "__main__":
    main()
