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
    """Return the backend as Keras calls it, the losses over all rows, and the parameters in the end."""
    come, give = os.pipe()
    take, back = os.pipe()
    words = [sys.executable, "-s", "-c", "import fit; fit.main()", give, take, comm.rank, comm.size]
    # The child is no rank: MPI's variables are not for it.
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PMI", "OMPI"))}
    modules = os.pathsep.join(str(Path(module.__file__).parent) for module in (fit, envbuild_job))
    env = {**kept, "KERAS_BACKEND": backend, "PYTHONPATH": modules}
    child = subprocess.Popen([str(word) for word in words], env=env, pass_fds=(give, take))
    os.close(give)
    os.close(take)
    with os.fdopen(come, "rb") as received, os.fdopen(back, "wb") as sent:
        own_name = received.read(fit.NAME_BYTES).decode().strip()
        for length in (*[PARAMETERS] * STEPS, STEPS):
            array = np.frombuffer(received.read(length * 4), dtype=np.float32).copy()
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
    there = [name for name in BACKENDS if importlib.util.find_spec(name)]
    results = [train(backend, comm) for backend in there]
    backends = [name for name, _, _ in results]
    flat = np.concatenate([np.empty(0, np.float32), *(parameters for _, _, parameters in results)])
    envbuild_job.report(
        rank=comm.rank,
        size=comm.size,
        backends=backends,
        trained=len(set(backends)),
        there=len(there),
        steps=sum(len(losses) for _, losses, _ in results) // max(len(results), 1),
        losses=[loss for _, losses, _ in results for loss in losses],
        parameters=flat.tolist(),
        parameter_hash=hashlib.sha256(flat.tobytes()).hexdigest(),
    )


if __name__ == "__main__":
    main()
