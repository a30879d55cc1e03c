"""How the MXNet workers find each other: a scheduler and a server run beside rank 0.

Each is a process that only imports MXNet, and serves until the workers leave.
"""

import os
import socket
import subprocess
import sys

import envbuild_job


def start() -> "list[subprocess.Popen[bytes]]":
    """Set this rank's DMLC variables, before MXNet is imported; return the processes started here."""
    rank, size = envbuild_job.launched()
    here = socket.gethostname()
    envbuild_job.publish(f"host-{rank}", here)
    hosts = {envbuild_job.await_published(f"host-{other}") for other in range(size)}
    # Names are resolved only if there are several hosts.
    address = "127.0.0.1" if hosts == {here} else socket.gethostbyname(here)
    # Rank 0's, until the scheduler listens there.
    holder = envbuild_job.port_holder()
    if rank == 0:
        envbuild_job.publish("scheduler", f"{address} {holder.getsockname()[1]}")
    root, port = envbuild_job.await_published("scheduler").split()
    os.environ.update(
        DMLC_PS_ROOT_URI=root,
        DMLC_PS_ROOT_PORT=port,
        DMLC_NUM_SERVER="1",
        DMLC_NUM_WORKER=str(size),
        DMLC_NODE_HOST=address,
        DMLC_ROLE="worker",
    )
    roles = ("scheduler", "server") if rank == 0 else ()
    command = [sys.executable, "-s", "-c", "import mxnet"]
    return [subprocess.Popen(command, env={**os.environ, "DMLC_ROLE": role}) for role in roles]


def worst_exit_code(processes: "list[subprocess.Popen[bytes]]") -> int:
    """Wait for the processes, which end once all workers have left; return the exit code farthest from 0."""
    return max((abs(process.wait(60)) for process in processes), default=0)
