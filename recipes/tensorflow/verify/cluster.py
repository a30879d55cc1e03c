"""How the TensorFlow jobs find each other: TF_CONFIG, from what the launcher set."""

import json
import os
import socket

import envbuild_job


def start() -> "tuple[int, int, socket.socket]":
    """Set TF_CONFIG for this rank, before a strategy is made; return (rank, size, the port's holder).

    Every rank holds a port that the system chose, and publishes its address.
    The holder is bound and does not listen: with SO_REUSEADDR, which gRPC sets
    too, TensorFlow's server can still listen there, and nobody else is given
    the port meanwhile. Close it once the strategy is there.
    """
    rank, size = envbuild_job.launched()
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    here = socket.gethostname()
    envbuild_job.publish(f"worker-{rank}", f"{here} {holder.getsockname()[1]}")
    workers = []
    for each in range(size):
        host, port = envbuild_job.await_published(f"worker-{each}").split()
        workers.append(f"127.0.0.1:{port}" if host == here else f"{host}:{port}")
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    return rank, size, holder
