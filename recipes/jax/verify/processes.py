"""How the JAX jobs find each other: a coordinator on rank 0, then gloo, or NCCL with a GPU a process."""

import socket

import envbuild_gpus
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
    jax.config.update("jax_platforms", "cuda" if envbuild_gpus.is_gpu_job() else "cpu")
    jax.config.update("jax_enable_x64", True)
    if not envbuild_gpus.is_gpu_job():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        own = None
    else:
        # Not TensorFloat-32, which rounds: the results of one and of several processes are compared.
        jax.config.update("jax_default_matmul_precision", "highest")
        own = [envbuild_gpus.own_gpu(envbuild_gpus.Driver().count())]
    jax.distributed.initialize(f"{address}:{port}", num_processes=size, process_id=rank, local_device_ids=own)
    holder.close()
    return jax.process_index(), jax.process_count(), jax.make_mesh((jax.device_count(),), ("ranks",))
