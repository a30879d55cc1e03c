"""How the TensorFlow jobs find each other: TF_CONFIG, from what the launcher set; on request with a GPU."""

import json
import os
import socket

import envbuild_gpus
import envbuild_job
import tensorflow as tf


def start() -> "tuple[int, int, socket.socket]":
    """Set TF_CONFIG for this rank, before a strategy is made; return (rank, size, the port's holder).

    Every rank publishes its address. Close the holder after the strategy is made: gRPC then listens.
    """
    choose_devices()
    rank, size = envbuild_job.launched()
    holder = envbuild_job.port_holder()
    here = socket.gethostname()
    envbuild_job.publish(f"worker-{rank}", f"{here} {holder.getsockname()[1]}")
    workers = []
    for worker in range(size):
        host, port = envbuild_job.await_published(f"worker-{worker}").split()
        workers.append(f"127.0.0.1:{port}" if host == here else f"{host}:{port}")
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    return rank, size, holder


def strategy() -> "tf.distribute.Strategy":
    """Return the strategy of all workers; on GPUs over NCCL."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    kind = kinds.NCCL if envbuild_gpus.is_gpu_job() else kinds.AUTO
    options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def choose_devices() -> None:
    """Show TensorFlow this rank's GPU alone, or none in a job on the CPU; before it makes a device."""
    visible = tf.config.list_physical_devices("GPU")
    own = [visible[envbuild_gpus.own_gpu(len(visible))]] if envbuild_gpus.is_gpu_job() else []
    tf.config.set_visible_devices(own, "GPU")
    # TensorFloat-32 rounds: the results of one worker and of several are compared.
    tf.config.experimental.enable_tensor_float_32_execution(False)
