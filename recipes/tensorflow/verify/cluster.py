"""How the TensorFlow jobs find each other: TF_CONFIG, from what the launcher set."""

import json
import os
import socket

import envbuild_job


def start() -> "tuple[int, int, socket.socket]":
    """Set TF_CONFIG for this rank, before a strategy is made; return (rank, size, the port's holder).

    Every rank publishes its address. Close the holder after the strategy is made: gRPC then listens.
    """
    rank, size = envbuild_job.launched()
    holder = envbuild_job.port_holder()
    here = socket.gethostname()
    envbuild_job.publish(f"worker-{rank}", f"{here} {holder.getsockname()[1]}")
    workers = []
    for each in range(size):
        host, port = envbuild_job.await_published(f"worker-{each}").split()
        workers.append(f"127.0.0.1:{port}" if host == here else f"{host}:{port}")
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    return rank, size, holder
