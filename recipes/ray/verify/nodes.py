"""How the Ray jobs get a cluster: rank 0 starts the head and every other rank a node, without SSH."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import envbuild_job

START_S, END_S = 90.0, 20.0
# The time limit of the whole job comes first.
DRIVER_S = 3600.0
# The least that Ray takes.
STORE_BYTES = 80 << 20


def resource(rank: int) -> str:
    """Return the name of the resource that the node of a rank alone has."""
    return f"rank-{rank}"


@contextlib.contextmanager
def joined() -> "Iterator[tuple[int, int]]":
    """Start this rank's node and yield (rank, size) of the launcher; at the end the node is stopped."""
    rank, size = envbuild_job.launched()
    host = _meeting_host(rank, size)
    if rank == 0:
        envbuild_job.publish("secret", secrets.token_hex(32))
    _configure(envbuild_job.await_published("secret"))
    # A path of more than 107 bytes cannot be that of a socket.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name:
        if rank == 0:
            with envbuild_job.port_holder(host) as holder:
                port = holder.getsockname()[1]
            start = ["--head", f"--port={port}", "--include-dashboard=false"]
        else:
            start = [f"--address={envbuild_job.await_published('head', timeout_s=START_S)}"]
        node = _node(host, Path(name), rank, start)
        try:
            if rank == 0:
                envbuild_job.publish("head", f"{host}:{port}")
            yield rank, size
        finally:
            node.terminate()
            try:
                node.wait(END_S)
            except subprocess.TimeoutExpired:
                node.kill()


@contextlib.contextmanager
def driver(size: int) -> "Iterator[ModuleType]":
    """Connect rank 0 to the cluster once all nodes are there, and yield Ray; at the end the ranks go on."""
    import ray  # noqa: PLC0415  # it reads the secret when it is imported

    try:
        ray.init(address=envbuild_job.await_published("head"), logging_level="warning", log_to_driver=False)
        _await_nodes(ray, size)
        yield ray
    finally:
        ray.shutdown()
        envbuild_job.publish("driver-ended", "")


def _await_nodes(ray: "ModuleType", size: int) -> None:
    deadline = time.monotonic() + START_S
    while sum(node["Alive"] for node in ray.nodes()) < size:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all {size} nodes have joined: {ray.nodes()}")
        time.sleep(0.1)


def _node(host: str, directory: Path, rank: int, start: "list[str]") -> subprocess.Popen:
    options = [
        f"--node-ip-address={host}",
        f"--temp-dir={directory}",
        "--num-cpus=1",
        "--num-gpus=0",
        f'--resources={{"{resource(rank)}": 1}}',
        f"--object-store-memory={STORE_BYTES}",
        "--disable-usage-stats",
        "--block",
    ]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *start, *options]
    # No daemon outlives its rank.
    return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command])


def _configure(secret: str) -> None:
    """Set the variables of all processes of this rank."""
    os.environ |= {
        # Without it, every process that reaches the head's port could run programs as this user.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secret,
        "RAY_USAGE_STATS_ENABLED": "0",
        # /dev/shm of a container may be smaller than a store.
        "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _meeting_host(rank: int, size: int) -> str:
    """Return the address at which this rank's node listens: the loopback if all ranks share a host."""
    envbuild_job.publish(f"host-{rank}", socket.gethostname())
    hosts = {envbuild_job.await_published(f"host-{other}") for other in range(size)}
    return "127.0.0.1" if len(hosts) == 1 else socket.gethostbyname(socket.gethostname())
