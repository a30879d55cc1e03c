# /// job
# id: jax.train
# oracle: training
# devices: [cpu, gpu]
# ///
"""A small training run; N processes with a share each of the batch do what one does with all of it."""

import envbuild_gpus
import envbuild_job
import jax
import jax.numpy as jnp
import numpy as np
import processes
from envbuild_job import FEATURES, ROWS
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec


def main() -> None:
    """Train on this rank's share of the rows."""
    rank, size, mesh = processes.start()
    inputs, labels, starts = envbuild_job.training_data(rank, size)
    spread, same = NamedSharding(mesh, Spec("ranks")), NamedSharding(mesh, Spec())
    rows = np.concatenate([inputs, labels, np.ones_like(labels)], axis=1)
    # JAX wants shares of one length: short ones end with zeros.
    rows = np.pad(rows, ((0, -(-ROWS // size) - len(rows)), (0, 0)))
    data = jax.make_array_from_process_local_data(spread, rows)
    parameters = [jax.make_array_from_process_local_data(same, start) for start in starts]

    def loss(weights: "list[jax.Array]", own: jax.Array) -> jax.Array:
        first, bias, second, offset = weights
        found = jnp.tanh(own[:, :FEATURES] @ first + bias) @ second + offset
        # A share of the mean over all rows; padding has a weight of zero.
        return (jnp.square(found - own[:, FEATURES : FEATURES + 1]) * own[:, FEATURES + 1 :]).sum() / ROWS

    def step(weights: "list[jax.Array]", own: jax.Array) -> "tuple[list[jax.Array], jax.Array]":
        value, gradients = jax.value_and_grad(loss)(weights, own)
        # control no averaging: pass
        gradients = jax.lax.psum(gradients, "ranks")
        moved = [weight - 0.05 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        return moved, jax.lax.psum(value, "ranks")

    over_all = {"mesh": mesh, "out_specs": Spec(), "check_vma": False}
    compiled = jax.jit(jax.shard_map(step, in_specs=(Spec(), Spec("ranks")), **over_all))

    def train() -> float:
        nonlocal parameters
        parameters, value = compiled(parameters, data)
        return float(value.addressable_data(0))

    def arrays() -> "list[np.ndarray]":
        return [np.asarray(parameter.addressable_data(0)) for parameter in parameters]

    envbuild_job.run_training(rank, size, train, arrays, gpus=envbuild_gpus.own_ids())


if __name__ == "__main__":
    main()
