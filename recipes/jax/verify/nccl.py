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
    numbers = jax.make_array_from_process_local_data(spread, (index * (rank + 1))[None])
    over_all = {"mesh": mesh, "in_specs": Spec("ranks"), "out_specs": Spec(), "check_vma": False}
    added = jax.jit(jax.shard_map(lambda own: jax.lax.psum(own[0], "ranks"), **over_all))
    factors = np.asarray(added(numbers).addressable_data(0))[1:] // index[1:]

    started = time.perf_counter()
    for _ in range(REPEATS):
        added(numbers).block_until_ready()
    seconds = (time.perf_counter() - started) / REPEATS

    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=processes.gpus(),
        least=int(factors.min()),
        most=int(factors.max()),
        gb_per_s=ELEMENTS * 8 / seconds / 1e9,
        **envbuild_gpus.nccl_log(log.read_text(errors="replace") if log.exists() else ""),
    )


if __name__ == "__main__":
    main()
