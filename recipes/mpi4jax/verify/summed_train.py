# /// job
# id: mpi4jax.train
# oracle: training
# title: a training run on N ranks over MPI against the same on one
# ///
"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it."""

import envbuild_job
import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from envbuild_job import ROWS
from mpi4py import MPI


def main() -> None:
    """Train on this rank's share of the rows."""
    jax.config.update("jax_platforms", "cpu")
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    inputs, labels, parameters = envbuild_job.training_data(rank, size)

    def loss(weights: "list[jax.Array]") -> jax.Array:
        first, bias, second, offset = weights
        found = jnp.tanh(inputs @ first + bias) @ second + offset
        # A share of the mean over all rows; shares of any size add up to it.
        return jnp.square(found - labels).sum() / ROWS

    @jax.jit
    def averaged(weights: "list[jax.Array]") -> "tuple[list[jax.Array], jax.Array]":
        value, gradients = jax.value_and_grad(loss)(weights)
        # control no averaging: pass
        gradients = [mpi4jax.allreduce(gradient, op=MPI.SUM, comm=comm) for gradient in gradients]
        moved = [weight - 0.05 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        return moved, mpi4jax.allreduce(value, op=MPI.SUM, comm=comm)

    def step() -> float:
        nonlocal parameters
        parameters, value = averaged(parameters)
        return float(value)

    envbuild_job.run_training(rank, size, step, lambda: [np.asarray(parameter) for parameter in parameters])


if __name__ == "__main__":
    main()
