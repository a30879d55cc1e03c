"""A small training run; N processes with a share each of the batch do what one does with all of it.

A regression with noisy labels, so that training on a share alone ends far
from training on the whole.
"""

import hashlib

import envbuild_job
import jax
import jax.numpy as jnp
import numpy as np
import processes
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, 25


def share(rows: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return a process's rows, filled up with zeros to the length of the longest share."""
    own = rows[rank * ROWS // size : (rank + 1) * ROWS // size]
    return np.pad(own, ((0, -(-ROWS // size) - len(own)), (0, 0)))


def main() -> None:
    """Train, and report losses, parameters and their hash."""
    rank, size, mesh = processes.start()
    random = np.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(np.float32)
    labels = (np.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(np.float32)
    shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
    starts = [(random.randn(*shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]
    spread, same = NamedSharding(mesh, Spec("ranks")), NamedSharding(mesh, Spec())
    rows = np.concatenate([inputs, labels, np.ones((ROWS, 1), np.float32)], axis=1)
    data = jax.make_array_from_process_local_data(spread, share(rows, rank, size))
    parameters = [jax.make_array_from_process_local_data(same, start) for start in starts]

    def loss(weights: "list[jax.Array]", own: jax.Array) -> jax.Array:
        first, bias, second, offset = weights
        found = jnp.tanh(own[:, :FEATURES] @ first + bias) @ second + offset
        # A share of the mean over all rows; what was filled up counts for nothing.
        return (jnp.square(found - own[:, FEATURES : FEATURES + 1]) * own[:, FEATURES + 1 :]).sum() / ROWS

    def step(weights: "list[jax.Array]", own: jax.Array) -> "tuple[list[jax.Array], jax.Array]":
        value, gradients = jax.value_and_grad(loss)(weights, own)
        gradients = jax.lax.psum(gradients, "ranks")
        moved = [weight - 0.05 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        return moved, jax.lax.psum(value, "ranks")

    over_all = {"mesh": mesh, "out_specs": Spec(), "check_vma": False}
    stepped = jax.jit(jax.shard_map(step, in_specs=(Spec(), Spec("ranks")), **over_all))
    losses = []
    for _ in range(STEPS):
        parameters, value = stepped(parameters, data)
        losses.append(float(value.addressable_data(0)))

    flat = np.concatenate([np.asarray(each.addressable_data(0)).ravel() for each in parameters])
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
