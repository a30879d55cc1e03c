# /// job
# id: ucx.shm
# title: UCX's tagged messages between neighbours through shared memory
# environment: {UCX_TLS: "sm,self", UCX_LOG_LEVEL: info}
# says: {transport: [tag(sysv/, tag(posix/, tag(cma/, tag(xpmem/]}
# expect: {served: 1, asked: 1}
# hint: "`apptainer exec IMAGE ucx_info -d` lists the transports that the image has here"
# controls:
#   no neighbour is asked: [served, asked]
#   another transport:
#     fails: [transport]
#     environment: {UCX_TLS: "tcp,self"}
# ///
"""UCX's own test of tagged messages between neighbours; the environment chooses the transport."""

import envbuild_job
from neighbours import exchange

ROUNDS, SIZE_BYTES = 200, 65_536


def main() -> None:
    """Serve one neighbour, ask the other, and report how both ended."""
    rank, size = envbuild_job.launched()
    words = ["-t", "tag_bw", "-n", str(ROUNDS), "-s", str(SIZE_BYTES), "-p", "PORT"]
    server = ["ucx_perftest", *words]
    # control no neighbour is asked: client = ["ucx_perftest", "999.0.0.1", *words]
    client = ["ucx_perftest", "127.0.0.1", *words]
    values = exchange(server, client, ROUNDS * SIZE_BYTES)
    envbuild_job.report(rank=rank, size=size, **values)


if __name__ == "__main__":
    main()
