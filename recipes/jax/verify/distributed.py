# /// job
# id: jax.distributed
# oracle: averaging
# devices: [cpu, gpu]
# title: jax.distributed, exact oracle
# expect: {sum: n*(n+1)//2}
# controls:
#   half a step: [weight_first]
# ///
"""jax.distributed over gloo, or NCCL on GPUs. A compiled average may multiply with 1/N: w is a float64."""

import envbuild_gpus
import envbuild_job
import jax
import numpy as np
import processes
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec


def main() -> None:
    """Sum over all processes, and average gradients."""
    rank, size, mesh = processes.start()
    mine = np.array([rank + 1], dtype=np.int64)
    numbers = jax.make_array_from_process_local_data(NamedSharding(mesh, Spec("ranks")), mine)

    def loss(w: jax.Array, number: jax.Array) -> jax.Array:
        return 0.5 * (w + size * number[0]) ** 2

    def step(w: jax.Array, number: jax.Array) -> jax.Array:
        gradient = jax.grad(loss)(w, number)
        # control no averaging: return w - gradient
        # control half a step: return w - 0.5 * jax.lax.pmean(gradient, "ranks")
        return w - jax.lax.pmean(gradient, "ranks")

    def add(number: jax.Array) -> jax.Array:
        return jax.lax.psum(number[0], "ranks")

    # Unchecked, gradients stay local: the averaging is what is examined.
    over_all = {"mesh": mesh, "out_specs": Spec(), "check_vma": False}
    compiled = jax.jit(jax.shard_map(step, in_specs=(Spec(), Spec("ranks")), **over_all))
    w = jax.make_array_from_process_local_data(NamedSharding(mesh, Spec()), np.float64(0.0))

    def averaged_step() -> float:
        nonlocal w
        w = compiled(w, numbers)
        return float(np.float32(w.addressable_data(0)))

    total = jax.jit(jax.shard_map(add, in_specs=Spec("ranks"), **over_all))(numbers)
    envbuild_job.run_averaging(
        rank, size, averaged_step, sum=int(total.addressable_data(0)), gpus=envbuild_gpus.own_ids()
    )


if __name__ == "__main__":
    main()
