"""libfabric's own ping-pong between neighbours; a job's environment chooses the provider."""

import os

import envbuild_job
from neighbours import exchange

ROUNDS, SIZE_BYTES = 20, 65_536


def main() -> None:
    """Serve one neighbour, ask the other, and report how both ended."""
    rank, size = envbuild_job.launched()
    # -c: both ends compare every byte that they receive.
    words = ["-p", os.environ["FI_PROVIDER"], "-e", "rdm", "-c", "-I", str(ROUNDS), "-S", str(SIZE_BYTES)]
    values = exchange(
        ["fi_pingpong", *words, "-B", "PORT"],
        # control no neighbour is asked: ["fi_pingpong", *words, "-P", "PORT", "999.0.0.1"],
        ["fi_pingpong", *words, "-P", "PORT", "127.0.0.1"],
        ROUNDS * SIZE_BYTES,
    )
    envbuild_job.report(rank=rank, size=size, **values)
