"""How the PyTorch jobs find each other: a store on rank 0, then gloo, or NCCL with a GPU for each rank."""

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
    here = socket.gethostname()
    if rank == 0:
        # The system chooses the port; no other program can take it between choosing and listening.
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        envbuild_job.publish("store", f"{here} {store.port}")
    else:
        host, port = envbuild_job.await_published("store").split()
        address = "127.0.0.1" if host == here else host
        store = dist.TCPStore(address, int(port), size, is_master=False)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
    return dist.get_rank(), dist.get_world_size()


def device() -> torch.device:
    """Return where this rank's tensors live."""
    return torch.device("cuda" if BACKEND == "nccl" else "cpu")


def gpus() -> "list[str]":
    """Return the id of this rank's GPU, for its report; nothing on a CPU."""
    if BACKEND != "nccl":
        return []
    return [f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"]
