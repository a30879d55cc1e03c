# /// job
# id: pytorch.allreduce
# launcher: any
# devices: [cpu, gpu]
# title: time of an allreduce of torch.distributed by message size
# expect: {least: n*(n+1)//2, most: n*(n+1)//2}
# measures:
#   1KiB: {unit: us, higher_is_better: false, message_bytes: 1024}
#   16KiB: {unit: us, higher_is_better: false, message_bytes: 16384}
#   128KiB: {unit: us, higher_is_better: false, message_bytes: 131072}
#   1MiB: {unit: us, higher_is_better: false, message_bytes: 1048576}
#   4MiB: {unit: us, higher_is_better: false, message_bytes: 4194304}
#   16MiB: {unit: us, higher_is_better: false, message_bytes: 16777216}
# hint: set GLOO_SOCKET_IFNAME if the host's name leads to no usable interface
# ///
"""The time of an allreduce of float32 over gloo, or NCCL on GPUs, by message size, and its exact sum.

Each size is repeated in one loop behind a barrier, and the loop's time divided: the mean of a rank.
"""

import os
import time

import envbuild_job
import group
import torch
import torch.distributed as dist

# Those of the header: `8B:8 1KiB:1024`.
SIZES = [pair.rpartition(":")[::2] for pair in os.environ["ENVBUILD_MESSAGES"].split()]
# A loop sends about so many bytes, in at least and at most so many messages.
LOOP_BYTES, LEAST, MOST = 64 << 20, 5, 200


def main() -> None:
    """Measure each size and report."""
    rank, size = group.start()
    device = group.device()
    times, sums = {}, []
    for name, text in SIZES:
        size_bytes = int(text)
        numbers = torch.full((size_bytes // 4,), rank + 1.0, device=device)
        total = numbers.clone()
        dist.all_reduce(total)
        sums += [float(total.min()), float(total.max())]
        # Zeros stay zeros, however often they are added up.
        zeros = torch.zeros_like(numbers)
        count = max(LEAST, min(MOST, LOOP_BYTES // size_bytes))
        for _ in range(LEAST):
            dist.all_reduce(zeros)
        dist.barrier()
        synchronize(device)
        started = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(zeros)
        synchronize(device)
        times[name] = (time.perf_counter() - started) / count * 1e6
    gpus = group.gpus()
    envbuild_job.report(rank=rank, size=size, gpus=gpus, least=min(sums), most=max(sums), **times)
    dist.destroy_process_group()


def synchronize(device: torch.device) -> None:
    """Wait for the work of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
