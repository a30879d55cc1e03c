"""Each rank serves one neighbour and asks the other, with the two ends of a command-line test."""

import socket
import subprocess
import time

import envbuild_job

WAIT_S = 20.0


def free_port() -> int:
    """Return a TCP port of the loopback that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def exchange(server: list[str], client: list[str], sent_bytes: int) -> dict[str, int]:
    """Run both ends and return the values to report.

    ``PORT`` in a command line stands for the port of the server; a client sends at least `sent_bytes`.
    """
    rank, size = envbuild_job.launched()
    before = envbuild_job.received_bytes()
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
        "over_network": int(envbuild_job.received_bytes() - before >= sent_bytes),
    }
