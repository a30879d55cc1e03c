# /// job
# id: pytorch.nccl
# launcher: any
# title: an allreduce of 128 MiB between GPUs over NCCL, exact sum
# devices: [gpu]
# environment: {NCCL_DEBUG: INFO, NCCL_DEBUG_SUBSYS: "INIT,NET"}
# expect: {least: n*(n+1)//2, most: n*(n+1)//2}
# measures: {gb_per_s: {unit: GB/s}}
# # Far below any link between GPUs: a fallback through sockets reaches it too, and `nccl.network` names that.
# at_least: {gb_per_s: 0.5}
# hint: NCCL_DEBUG=INFO says which way the ranks took
# controls:
#   a wrong number of each rank, and a crawl: [least, most, gb_per_s]
# ///
"""An allreduce over NCCL (RCCL): an exact sum, its rate, and what NCCL's own log says of the way it took.

Element i of rank r is i(r+1), so every element of the sum divided by its index is N(N+1)/2, exact in int64.
"""

import os
import time
from pathlib import Path

import envbuild_gpus
import envbuild_job
import group
import torch
import torch.distributed as dist

ELEMENTS = 16 * 1024 * 1024  # int64: 128 MiB a rank
REPEATS = 5


def main() -> None:
    """Add up over all ranks, measure, and report."""
    log = Path(f"nccl-{os.getpid()}.log").absolute()
    os.environ["NCCL_DEBUG_FILE"] = str(log)
    rank, size = group.start()
    index = torch.arange(ELEMENTS, dtype=torch.int64, device=group.device())
    # control a wrong number of each rank, and a crawl: total = index * (rank + 2)
    total = index * (rank + 1)
    dist.all_reduce(total)
    factors = total[1:] // index[1:]

    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(REPEATS):
        # control a wrong number of each rank, and a crawl: time.sleep(1)
        dist.all_reduce(index)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / REPEATS

    envbuild_job.report(
        rank=rank,
        size=size,
        gpus=group.gpus(),
        least=int(factors.min()),
        most=int(factors.max()),
        gb_per_s=ELEMENTS * 8 / seconds / 1e9,
        **envbuild_gpus.nccl_log(log.read_text(errors="replace")),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
