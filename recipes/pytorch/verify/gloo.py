"""How the PyTorch jobs find each other: a store on rank 0, then gloo."""

import socket

import envbuild_job
import torch
import torch.distributed as dist


def start() -> "tuple[int, int]":
    """Join the process group of all launched ranks; return (rank, size) as PyTorch sees them."""
    torch.set_num_threads(1)
    rank, size = envbuild_job.launched()
    here = socket.gethostname()
    if rank == 0:
        # The system chooses the port; nobody can take it between choosing and listening.
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        envbuild_job.publish("store", f"{here} {store.port}")
    else:
        host, port = envbuild_job.await_published("store").split()
        address = "127.0.0.1" if host == here else host
        store = dist.TCPStore(address, int(port), size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return dist.get_rank(), dist.get_world_size()
