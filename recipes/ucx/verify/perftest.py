"""UCX's own test of tagged messages between neighbours; the environment chooses the transport."""

import envbuild_job
from neighbours import exchange

ROUNDS, SIZE_BYTES = 200, 65_536


def main() -> None:
    """Serve one neighbour, ask the other, and report how both ended."""
    rank, size = envbuild_job.launched()
    words = ["-t", "tag_bw", "-n", str(ROUNDS), "-s", str(SIZE_BYTES), "-p", "PORT"]
    values = exchange(["ucx_perftest", *words], ["ucx_perftest", "127.0.0.1", *words], ROUNDS * SIZE_BYTES)
    envbuild_job.report(rank=rank, size=size, **values)


if __name__ == "__main__":
    main()
