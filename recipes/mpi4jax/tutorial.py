"""From mpi4jax's "Example usage": an allreduce within a compiled function, on one rank."""

import jax
import jax.numpy as jnp
import mpi4jax
from mpi4py import MPI

result = jax.jit(lambda x: mpi4jax.allreduce(x + MPI.COMM_WORLD.Get_rank(), op=MPI.SUM))(jnp.zeros((3, 3)))
print(result)
