"""A small training run over MPI; N ranks with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from mpi4py import MPI

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    jax.config.update("jax_platforms", "cpu")
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(np.float32)
    labels = (np.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)
    shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
    parameters = [(random.randn(*shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]
    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)

    def loss(weights: "list[jax.Array]") -> jax.Array:
        first, bias, second, offset = weights
        found = jnp.tanh(inputs[own] @ first + bias) @ second + offset
        # A share of the mean over all rows; shares of any size add up to it.
        return jnp.square(found - labels[own]).sum() / ROWS

    @jax.jit
    def step(weights: "list[jax.Array]") -> "tuple[list[jax.Array], jax.Array]":
        value, gradients = jax.value_and_grad(loss)(weights)
        gradients = [mpi4jax.allreduce(each, op=MPI.SUM, comm=comm) for each in gradients]
        moved = [weight - 0.05 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        return moved, mpi4jax.allreduce(value, op=MPI.SUM, comm=comm)

    losses = []
    for _ in range(STEPS):
        parameters, value = step(parameters)
        losses.append(float(value))

    flat = np.concatenate([np.asarray(each).ravel() for each in parameters])
    envbuild_job.report(
        rank=rank,
        size=size,
        steps=len(losses),
        losses=losses,
        parameters=flat.tolist(),
        parameter_hash=hashlib.sha256(flat.tobytes()).hexdigest(),
    )


if __name__ == "__main__":
    main()
