"""The module that mini jobs import: a rank's place, its report, how ranks meet, two standard problems.

Standard library only (`training_data` uses the image's NumPy), Python 2.7 or 3.9
and newer; it travels in every image. The parent starts each rank as
``python envbuild_job.py JOB.py``. A job reports once::

    import envbuild_job
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    total = comm.allreduce(comm.rank + 1)
    envbuild_job.report(rank=comm.rank, size=comm.size, sum=total)

Rank and size are those that the library under test sees, not the launcher's:
if the two differ, the ranks do not communicate. The recipe states the expected
facts; the parent judges.
"""

import ctypes
import glob
import hashlib
import importlib
import io
import json
import os
import platform
import re
import runpy
import socket
import sys
import time

try:
    import faulthandler
    from collections.abc import Callable  # noqa: F401  # of type comments
    from typing import Any  # noqa: F401  # of type comments
except ImportError:  # Python 2.7: no traceback of a rank that hangs
    faulthandler = None  # type: ignore[assignment]

REPORT_FORMAT = 1

# The training problem of `training_data`: 25 steps of gradient descent with a learning rate of 0.05. Controls
# of the oracle `training` set these variables: fewer steps, and one rank's share for all.
ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 16, int(os.environ.get("ENVBUILD_STEPS", "25"))
_SHARE_OF_RANK = os.environ.get("ENVBUILD_SHARE_OF_RANK", "")

# Interface -> bytes that it had received when this module was imported.
_before = {}  # type: dict[str, int]
# Families of libraries that a report names.
_REPORTED = ("mpi", "nccl", "cudart", "fabric")
# Where libraries, Python packages and commands of a host are bound.
_OF_SITE = "/media/envbuild"
_MAX_VERSION_BYTES = 1 << 16


def launched():
    # type: () -> tuple[int, int]
    """Return (rank, size) as the launcher set them; (0, 1) without one, or by one that started one rank."""
    for rank, size in _table("envbuild_ranks").RANKS:
        words = os.environ.get(rank, ""), os.environ.get(size, "")
        if words[0].isdigit() and words[1].isdigit() and int(words[1]) > 1:
            return int(words[0]), int(words[1])
    return 0, 1


def _table(name):
    # type: (str) -> Any
    """Return a module with a table that is beside this one."""
    try:
        return importlib.import_module(name)
    except ImportError:  # part of a package, as the parent has it
        return importlib.import_module("envbuild.jobs." + name)


def report(rank, size, **values):
    # type: (int, int, object) -> None
    """Write this process's one report; it appears whole or not at all.

    `rank` (from 0) and `size` are those that the library under test sees; JSON must be able to hold the
    values. RuntimeError: the process has reported already.
    """
    path = os.path.join(_directory(), "report-" + _process() + ".json")
    if os.path.exists(path):
        raise RuntimeError("a job reports once")
    libraries = mapped_libraries()
    facts = {
        "format": REPORT_FORMAT,
        "token": os.environ.get("ENVBUILD_TOKEN", ""),
        "rank": rank,
        "size": size,
        "launched": launched(),
        "host": socket.gethostname(),
        "process": _namespace(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "cpus": _cpus(),
        "boot": _boot(),
        "received": _received_since(_before),
        "libraries": libraries,
        "mpi": [loaded_mpi(name) for name in libraries if _is_of(("mpi",), name)],
        "values": values,
    }
    _write_whole(path, json.dumps(facts, sort_keys=True))


def training_data(rank, size, dtype="float32"):
    # type: (int, int, str) -> tuple[Any, Any, list[Any]]
    """Return a rank's inputs and labels of a regression problem, and the first parameters, as NumPy arrays.

    Inputs and labels have the shapes (rows, FEATURES) and (rows, 1); the ranks share ROWS rows. The
    parameters w, b, v and c of the network tanh(inputs @ w + b) @ v + c have the shapes (FEATURES, HIDDEN),
    (HIDDEN,), (HIDDEN, 1) and (1,). The labels are noisy, so that training on one share ends far from
    training on all rows.
    """
    numpy = importlib.import_module("numpy")
    random = numpy.random.RandomState(2026)
    inputs = random.randn(ROWS, FEATURES).astype(dtype)
    labels = (numpy.sin(inputs).sum(axis=1, keepdims=True) + random.randn(ROWS, 1)).astype(dtype)
    shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))
    parameters = [(random.randn(*shape) / numpy.sqrt(shape[0])).astype(dtype) for shape in shapes]
    share = int(_SHARE_OF_RANK or rank)
    own = slice(share * ROWS // size, (share + 1) * ROWS // size)
    return inputs[own], labels[own], parameters


def run_training(rank, size, step, parameters, **values):
    # type: (int, int, Callable[[], float], Callable[[], list[Any]], object) -> None
    """Take `STEPS` steps and report the loss of each, the parameters in the end and their hash.

    The oracle is `training`. `step` takes one and returns the loss over the rows of all ranks; `parameters`
    returns the parameters (NumPy arrays).
    """
    losses = [float(step()) for _ in range(STEPS)]
    numbers, digest = [], hashlib.sha256()
    for array in parameters():
        numbers += array.ravel().tolist()
        digest.update(array.tobytes())
    values.update(steps=len(losses), losses=losses, parameters=numbers, parameter_hash=digest.hexdigest())
    report(rank, size, **values)


def run_averaging(rank, size, step, **values):
    # type: (int, int, Callable[[], float], object) -> None
    """Take three steps and report the weight after the first and the last.

    The oracle is `averaging`. `step` takes one and returns the weight after it.
    """
    weights = [float(step()) for _ in range(3)]
    report(rank, size, weight_first=weights[0], weight_last=weights[-1], **values)


def publish(name, text):
    # type: (str, str) -> None
    """Leave a text for the other ranks (rank 0's address)."""
    _write_whole(os.path.join(_directory(), "published-" + name), text)


def await_published(name, timeout_s=60.0):
    # type: (str, float) -> str
    """Return the text that a rank published; RuntimeError if none appears within the time."""
    path = os.path.join(_directory(), "published-" + name)
    deadline = time.time() + timeout_s
    while time.time() < deadline:
        if os.path.exists(path):
            with io.open(path, encoding="utf-8") as file:
                return file.read()
        time.sleep(0.01)
    raise RuntimeError("no rank published `{}` within {:g} s".format(name, timeout_s))


def port_holder(host=""):
    # type: (str) -> socket.socket
    """Return a socket that reserves a free port until it is closed.

    It does not listen: a server that sets SO_REUSEADDR, as it does, can listen there, and the system gives
    the port to no other.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


def received_bytes():
    # type: () -> int
    """Return how many bytes the interfaces here have received, loopback included."""
    return sum(_received().values())


def mapped_libraries():
    # type: () -> list[str]
    """Return the mapped MPI, NCCL, CUDA runtime, fabric and BLAS libraries, and files of the site, sorted."""
    with io.open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        # The path is the sixth field, and the only one that may hold a slash.
        paths = {line.rstrip("\n").split(None, 5)[5] for line in file if "/" in line}
    return sorted(path for path in paths if path.startswith(_OF_SITE) or _is_reported(path))


def _is_reported(path):
    # type: (str) -> bool
    return _is_of(_REPORTED, path) or _table("envbuild_libraries").is_blas(os.path.basename(path))


def _is_of(families, path):
    # type: (tuple[str, ...], str) -> bool
    is_library = _table("envbuild_libraries").is_library
    return any(is_library(family, os.path.basename(path)) for family in families)


def loaded_mpi(path):
    # type: (str) -> dict[str, str]
    """Identify a mapped MPI library: ``path``, ``sha256``, and the first line of its own ``version``.

    Hash and version are empty if they cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with io.open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
        sha256 = digest.hexdigest()
    except EnvironmentError:  # Python 2.7 has two of them
        sha256 = ""
    text = ctypes.create_string_buffer(_MAX_VERSION_BYTES)
    length = ctypes.c_int(0)
    try:
        # The library that is mapped already: this opens no other. The call is allowed at any time.
        ctypes.CDLL(path).MPI_Get_library_version(text, ctypes.byref(length))
    except (AttributeError, OSError):
        length.value = 0
    version = text.raw[: max(0, length.value)].decode("utf-8", "replace").strip("\0 \n").split("\n")[0]
    return {"path": path, "sha256": sha256, "version": " ".join(version.split())}


def _cpus():
    # type: () -> list[int]
    """Return the CPUs that this process may run on; empty if Python does not know."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _boot():
    # type: () -> str
    """Return the id of the running kernel, which differs between machines; empty if it cannot be read."""
    try:
        with io.open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except EnvironmentError:
        return ""


def _received():
    # type: () -> dict[str, int]
    """Return how many bytes each interface has received: of the network, and of InfiniBand devices.

    The latter count words of four bytes (``port_rcv_data`` in the kernel's
    Documentation/ABI/stable/sysfs-class-infiniband).
    """
    with io.open("/proc/net/dev") as file:
        rows = [line.partition(":") for line in file if ":" in line]
    counts = {name.strip(): int(numbers.split()[0]) for name, _, numbers in rows}
    for path in glob.glob("/sys/class/infiniband/*/ports/*/counters/port_rcv_data"):
        device, port = path.split("/")[4], path.split("/")[6]
        try:
            with io.open(path) as file:
                counts["infiniband {}/{}".format(device, port)] = 4 * int(file.read())
        except (EnvironmentError, ValueError):  # a counter that the device does not have
            continue
    return counts


def _received_since(before):
    # type: (dict[str, int]) -> dict[str, int]
    after = _received()
    return {name: after[name] - count for name, count in before.items() if after.get(name, 0) > count}


def _directory():
    # type: () -> str
    return os.environ.get("ENVBUILD_RESULTS", ".")


def _namespace():
    # type: () -> str
    # Each container of a host numbers its processes: only namespace and number together name a process.
    return os.readlink("/proc/self/ns/pid")


def _process():
    # type: () -> str
    words = (socket.gethostname(), _namespace(), str(os.getpid()))
    return "-".join(re.sub(r"[^A-Za-z0-9.]", "", word) for word in words)


def _write_whole(path, text):
    # type: (str, str) -> None
    directory, name = os.path.split(path)
    part = os.path.join(directory, ".part-" + _process() + "-" + name)
    with io.open(part, "wb") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)


def _keep_output():
    # type: () -> None
    """Send this process's output to a file, so that the parent can show it by rank."""
    rank, size = launched()
    name = "output-rank-{}-of-{}-{}.txt".format(rank, size, _process())
    handle = os.open(os.path.join(_directory(), name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def main(job):
    # type: (str) -> None
    """Run a job as one rank; shortly before the time limit, write a traceback."""
    _keep_output()
    dump_after_s = float(os.environ.get("ENVBUILD_DUMP_AFTER_S", "0"))
    if faulthandler is not None and dump_after_s > 0:
        faulthandler.dump_traceback_later(dump_after_s)
    # As `python JOB.py` has it; this file's own directory, which jobs import us from, follows.
    sys.path.insert(0, os.path.dirname(os.path.abspath(job)))
    runpy.run_path(job, run_name="__main__")
    if faulthandler is not None:
        faulthandler.cancel_dump_traceback_later()


_before.update(_received())

if __name__ == "__main__":
    # The job imports this file by name: one copy of it, whatever it was started as.
    sys.modules["envbuild_job"] = sys.modules["__main__"]
    main(sys.argv[1])
