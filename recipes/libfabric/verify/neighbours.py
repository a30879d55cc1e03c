"""Each rank serves one neighbour and asks the other, with the two ends of a command-line test."""

import socket
import subprocess
import time
from pathlib import Path

import envbuild_job

WAIT_S = 20.0


def free_port() -> int:
    """Return a TCP port of the loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def received_bytes() -> int:
    """Return how many bytes the network interfaces here have received, loopback included."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[0]) for line in lines)


def exchange(server: list[str], client: list[str], sent_bytes: int) -> dict[str, int]:
    """Run both ends and return what to report.

    Parameters
    ----------
    server, client : list of str
        Command lines; ``PORT`` stands for the port of whoever serves.
    sent_bytes : int
        What one client sends at least.
    """
    rank, size = envbuild_job.launched()
    before = received_bytes()
    port = str(free_port())
    serving = subprocess.Popen([word.replace("PORT", port) for word in server])
    envbuild_job.publish(f"port-{rank}", port)
    other = envbuild_job.await_published(f"port-{(rank + 1) % size}", WAIT_S)
    deadline = time.monotonic() + WAIT_S
    asked = 1
    # The neighbour may not listen yet.
    while asked and time.monotonic() < deadline:
        asked = subprocess.run([word.replace("PORT", other) for word in client], check=False).returncode
        if asked:
            time.sleep(0.2)
    try:
        served = serving.wait(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        serving.kill()
        served = 1
    return {
        "served": int(served == 0),
        "asked": int(asked == 0),
        "over_network": int(received_bytes() - before >= sent_bytes),
    }
