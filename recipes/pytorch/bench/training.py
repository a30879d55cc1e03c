"""The measurement that benchmarks of training share: weak and strong scaling, and the share of communication.

With weak scaling each rank has a whole batch, with strong scaling all ranks together. The share of
communication is what the averaging of gradients adds to a step: the time of steps with it against those
without (`no_sync`). Where it overlaps with computing, it is small.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable

import envbuild_job
import group
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3
STEPS = 10


def start() -> "tuple[int, int]":
    """Join the ranks, on the threads that a user would have; return (rank, size)."""
    rank, size = group.start()
    torch.set_num_threads(min(int(os.environ["OMP_NUM_THREADS"]), len(os.sched_getaffinity(0))))
    torch.manual_seed(2026)
    return rank, size


def measure(
    name: str,
    unit: int,
    samples: int,
    local: torch.nn.Module,
    loss_of: Callable[[torch.nn.Module, int, int], torch.Tensor],
) -> None:
    """Train with weak and with strong scaling and report.

    The values are `name` with ``_weak`` and ``_strong``: units per second, of which a sample has `unit`.
    `loss_of` takes the model, the number of a step and a number of samples, at most `samples`.
    """
    size, device = dist.get_world_size(), group.device()
    model = DistributedDataParallel(local)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def seconds(count: int, averaging: contextlib.AbstractContextManager) -> float:
        with averaging:
            for step in range(WARM_UP + STEPS):
                if step == WARM_UP:
                    synchronize(device)
                    started = time.perf_counter()
                optimizer.zero_grad()
                loss_of(model, step, count).backward()
                optimizer.step()
            synchronize(device)
        return time.perf_counter() - started

    weak_s = seconds(samples, contextlib.nullcontext())
    share = max(1, samples // size)
    # With one rank it is the same.
    strong_s = seconds(share, contextlib.nullcontext()) if size > 1 else weak_s
    digest = hashlib.sha256()
    for parameter in local.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    # Parameters differ from here on.
    alone_s = seconds(samples, model.no_sync()) if size > 1 else weak_s
    rates = {
        f"{name}_weak": size * STEPS * samples * unit / weak_s,
        f"{name}_strong": size * STEPS * share * unit / strong_s,
    }
    envbuild_job.report(
        rank=dist.get_rank(),
        size=size,
        gpus=group.gpus(),
        steps=STEPS,
        parameter_hash=digest.hexdigest(),
        communication=100 * max(0.0, 1 - alone_s / weak_s),
        **rates,
    )
    dist.destroy_process_group()


def synchronize(device: torch.device) -> None:
    """Wait for the work of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
