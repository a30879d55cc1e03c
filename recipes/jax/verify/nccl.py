# /// job
# id: jax.nccl
# title: a sum of 128 MiB between GPUs over NCCL, exact
# devices: [gpu]
# environment: {NCCL_DEBUG: INFO, NCCL_DEBUG_SUBSYS: "INIT,NET"}
# expect: {least: n*(n+1)//2, most: n*(n+1)//2}
# measures: {gb_per_s: {unit: GB/s}}
# # Far below any link between GPUs: a fallback through sockets reaches it too, and `nccl.network` names that.
# at_least: {gb_per_s: 0.5}
# hint: NCCL_DEBUG=INFO says which way the processes took
# controls:
#   a wrong number of each process, and a crawl: [least, most, gb_per_s]
# ///
"""A sum over all processes by NCCL: exact, its rate, and what NCCL's own log says of the way it took.

Element i of process r is i(r+1): every element of the sum divided by its index is N(N+1)/2, exact in int64.
"""

import os
import time
from pathlib import Path

import envbuild_gpus
import envbuild_job
import jax
import numpy as np
import processes
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

ELEMENTS = 16 * 1024 * 1024  # int64: 128 MiB a process
REPEATS = 5


def main() -> None:
    """Add up over all processes, measure, and report."""
    log = Path(f"nccl-{os.getpid()}.log").absolute()
    os.environ["NCCL_DEBUG_FILE"] = str(log)
    rank, size, mesh = processes.start()
    index = np.arange(ELEMENTS, dtype=np.int64)
    spread = NamedSharding(mesh, Spec("ranks"))
    # control a wrong number of each process, and a crawl: own = index * (rank + 2)
    own = index * (rank + 1)
    numbers = jax.make_array_from_process_local_data(spread, own[None])
    over_all = {"mesh": mesh, "in_specs": Spec("ranks"), "out_specs": Spec(), "check_vma": False}
    added = jax.jit(jax.shard_map(lambda share: jax.lax.psum(share[0], "ranks"), **over_all))
    factors = np.asarray(added(numbers).addressable_data(0))[1:] // index[1:]

    started = time.perf_counter()
    for _ in range(REPEATS):
        # control a wrong number of each process, and a crawl: time.sleep(1)
        added(numbers).block_until_ready()
    seconds = (time.perf_counter() - started) / REPEATS

    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=envbuild_gpus.own_ids(),
        least=int(factors.min()),
        most=int(factors.max()),
        gb_per_s=ELEMENTS * 8 / seconds / 1e9,
        **envbuild_gpus.nccl_log(log.read_text(errors="replace") if log.exists() else ""),
    )


if __name__ == "__main__":
    main()
