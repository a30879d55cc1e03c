"""jax.distributed, with an exact oracle; over gloo, or NCCL on GPUs.

The weight w starts at 0; process r's loss is ½(w + N(r+1))², its gradient
w + N(r+1). Averaged over the processes and with a learning rate of 1, the first
step ends at exactly -N(N+1)/2, and further steps leave it there. A compiled
average may be a product with 1/N, which is no exact number for every N: w is a
float64, and the float32 nearest to it is exact.
"""

import envbuild_job
import jax
import numpy as np
import processes
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec


def main() -> None:
    """Sum over all processes, take three steps, and report."""
    rank, size, mesh = processes.start()
    mine = np.array([rank + 1], dtype=np.int64)
    numbers = jax.make_array_from_process_local_data(NamedSharding(mesh, Spec("ranks")), mine)

    def loss(w: jax.Array, number: jax.Array) -> jax.Array:
        return 0.5 * (w + size * number[0]) ** 2

    def step(w: jax.Array, number: jax.Array) -> jax.Array:
        gradient = jax.grad(loss)(w, number)
        return w - 1.0 * jax.lax.pmean(gradient, "ranks")

    def add(number: jax.Array) -> jax.Array:
        return jax.lax.psum(number[0], "ranks")

    # Unchecked, gradients stay local: the averaging is what is examined.
    over_all = {"mesh": mesh, "out_specs": Spec(), "check_vma": False}
    stepped = jax.jit(jax.shard_map(step, in_specs=(Spec(), Spec("ranks")), **over_all))
    added = jax.jit(jax.shard_map(add, in_specs=Spec("ranks"), **over_all))
    w = jax.make_array_from_process_local_data(NamedSharding(mesh, Spec()), np.float64(0.0))
    weights = []
    for _ in range(3):
        w = stepped(w, numbers)
        weights.append(float(np.float32(w.addressable_data(0))))

    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=processes.gpus(),
        sum=int(added(numbers).addressable_data(0)),
        weight_first=weights[0],
        weight_last=weights[-1],
    )


if __name__ == "__main__":
    main()
