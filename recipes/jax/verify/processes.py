"""How the JAX jobs find each other: a coordinator on rank 0, then gloo."""

import socket

import envbuild_job
import jax


def start() -> "tuple[int, int, jax.sharding.Mesh]":
    """Join all launched processes; return (rank, size, mesh) as JAX sees them, one device a process."""
    rank, size = envbuild_job.launched()
    here = socket.gethostname()
    # Rank 0's, until the coordinator listens there.
    holder = envbuild_job.port_holder()
    if rank == 0:
        envbuild_job.publish("coordinator", f"{here} {holder.getsockname()[1]}")
    host, port = envbuild_job.await_published("coordinator").split()
    address = "127.0.0.1" if host == here else host
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"{address}:{port}", num_processes=size, process_id=rank)
    holder.close()
    return jax.process_index(), jax.process_count(), jax.make_mesh((jax.device_count(),), ("ranks",))
