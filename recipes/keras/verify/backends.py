# /// job
# id: keras.backends
# oracle: training
# title: a Keras model trained on N ranks over MPI on each backend, against one rank
# same_on_all_ranks: [backends]
# # Both are small numbers of backends.
# compare_with_reported: {trained: {there: 1.0e-9}}
# hint: gradients were not synchronised, or a backend computes something else
# controls:
#   other backends on each rank: {fails: [backends], least_ranks: 2}
#   one backend for all: {fails: [trained-as-there], needs: [jax, pytorch]}
# ///
"""A Keras model trained on each backend that the image holds; N ranks do what one does.

Each backend runs in a process of its own; its gradients come here, are summed
over all ranks by MPI, and go back.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import envbuild_job
import fit
import numpy as np
from envbuild_job import FEATURES, HIDDEN, STEPS
from mpi4py import MPI

BACKENDS = ("jax", "tensorflow", "torch")
PARAMETERS = FEATURES * HIDDEN + 2 * HIDDEN + 1


def train(backend: str, comm: MPI.Comm) -> "tuple[str, list[float], np.ndarray]":
    """Return the backend's name in Keras, the losses over all rows, and the parameters in the end."""
    from_child, give = os.pipe()
    take, to_child = os.pipe()
    words = [sys.executable, "-s", "-c", "import fit; fit.main()", give, take, comm.rank, comm.size]
    # The child is not a rank: it does not get MPI's variables.
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PMI", "OMPI"))}
    modules = os.pathsep.join(str(Path(module.__file__).parent) for module in (fit, envbuild_job))
    env = {**kept, "PYTHONPATH": modules}
    # control one backend for all: env["KERAS_BACKEND"] = next(filter(importlib.util.find_spec, BACKENDS))
    env["KERAS_BACKEND"] = backend
    child = subprocess.Popen([str(word) for word in words], env=env, pass_fds=(give, take))
    os.close(give)
    os.close(take)
    with os.fdopen(from_child, "rb") as received, os.fdopen(to_child, "wb") as sent:
        own_name = received.read(fit.NAME_BYTES).decode().strip()
        for length in (*[PARAMETERS] * STEPS, STEPS):
            array = np.frombuffer(received.read(length * 4), dtype=np.float32).copy()
            # control no averaging: pass
            comm.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)
            sent.write(array.tobytes())
            sent.flush()
        parameters = np.frombuffer(received.read(), dtype=np.float32)
    if child.wait():
        raise RuntimeError(f"the backend {backend} ended with exit code {child.returncode}")
    return own_name, array.tolist(), parameters


def main() -> None:
    """Train on each backend, and report."""
    comm = MPI.COMM_WORLD
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    results = [train(backend, comm) for backend in installed]
    backends = [name for name, _, _ in results]
    flat = np.concatenate([np.empty(0, np.float32), *(parameters for _, _, parameters in results)])
    envbuild_job.report(
        rank=comm.rank,
        size=comm.size,
        # control other backends on each rank: backends=backends[comm.rank :],
        backends=backends,
        trained=len(set(backends)),
        there=len(installed),
        steps=sum(len(losses) for _, losses, _ in results) // max(len(results), 1),
        losses=[loss for _, losses, _ in results for loss in losses],
        parameters=flat.tolist(),
        parameter_hash=hashlib.sha256(flat.tobytes()).hexdigest(),
    )


if __name__ == "__main__":
    main()
