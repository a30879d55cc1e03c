"""How the ranks of PyTorch jobs meet: as those of a user's script; over gloo, or NCCL with a GPU for each."""

import os
import socket

import envbuild_gpus
import envbuild_job
import torch
import torch.distributed as dist

BACKEND = "nccl" if envbuild_gpus.is_gpu_job() else "gloo"


def start() -> "tuple[int, int]":
    """Join the process group of all launched ranks; return (rank, size) as PyTorch sees them."""
    torch.set_num_threads(1)
    rank, size = envbuild_job.launched()
    if BACKEND == "nccl":
        torch.cuda.set_device(envbuild_gpus.own_gpu(torch.cuda.device_count()))
    if "MASTER_ADDR" in os.environ:
        # As a user's script: by the variables of launch, of a module or of torchrun.
        dist.init_process_group(BACKEND)
    else:
        dist.init_process_group(BACKEND, store=_own_store(rank, size), rank=rank, world_size=size)
    return dist.get_rank(), dist.get_world_size()


def _own_store(rank: int, size: int) -> dist.TCPStore:
    """Return a store of rank 0, for a rank alone, or on nodes whose first one no variable names."""
    here = socket.gethostname()
    if rank == 0:
        # The system chooses the port; no other program can take it between choosing and listening.
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        envbuild_job.publish("store", f"{here} {store.port}")
        return store
    host, port = envbuild_job.await_published("store").split()
    return dist.TCPStore("127.0.0.1" if host == here else host, int(port), size, is_master=False)


def device() -> torch.device:
    """Return where this rank's tensors live."""
    return torch.device("cuda" if BACKEND == "nccl" else "cpu")


def gpus() -> "list[str]":
    """Return the id of this rank's GPU, for its report; nothing on a CPU."""
    if BACKEND != "nccl":
        return []
    return [f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"]
