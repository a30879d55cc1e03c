"""One rank on each node reports what the node can do, then what each pair of nodes can.

A value has the name of its function here and of its row in `envbuild/spec/vet_values.py`. The ranks measure
at the same time, as the ranks of a real job would. Needs NumPy and mpi4py of the image.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import envbuild_job  # type: ignore[import-not-found]  # beside it in the image
import numpy as np  # type: ignore[import-not-found]  # the image has it
from mpi4py import MPI  # type: ignore[import-not-found]

# Each measurement is repeated: something else may run on the node now and then.
SAMPLES = 7
READS = 3
LEAST_S = 0.3
# Beyond all caches of a node, and little of its memory.
COPIED_BYTES = 512 << 20
MATRIX = 1024
FILE_BYTES = 64 << 20
MESSAGE_BYTES = 16 << 20
SMALL_MESSAGES = 50
LARGE_MESSAGES = 2
CLOCK_MESSAGES = 20
# Value of a GPU → what nvidia-smi is asked for.
GPU_VALUES = {
    "gpu_celsius": "temperature.gpu",
    "gpu_errors": "ecc.errors.uncorrected.volatile.total",
}

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()


def samples_s(work: Callable[[int], object]) -> list[float]:
    """Return wall-clock times (seconds) in which each CPU does its part of the work: the mean of each sample.

    All ranks begin a sample together.
    """
    cpus = len(os.sched_getaffinity(0))
    samples = []
    with ThreadPoolExecutor(cpus) as pool:
        list(pool.map(work, range(cpus)))
        for _ in range(SAMPLES):
            COMM.Barrier()
            start, turns = time.perf_counter(), 0
            while time.perf_counter() - start < LEAST_S:
                list(pool.map(work, range(cpus)))
                turns += 1
            samples.append((time.perf_counter() - start) / turns)
    return samples


def memory_gbs() -> list[float]:
    """Return the rates at which all CPUs together copy memory, reads and writes counted (GB/s)."""
    cpus = len(os.sched_getaffinity(0))
    elements = COPIED_BYTES // 2 // cpus // 8
    arrays = [(np.ones(elements), np.zeros(elements)) for _ in range(cpus)]
    samples = samples_s(lambda cpu: np.copyto(arrays[cpu][1], arrays[cpu][0]))
    return [2 * 8 * elements * cpus / seconds / 1e9 for seconds in samples]


def gemm_gflops() -> list[float]:
    """Return the rates at which all CPUs together multiply matrices of float64 (GFLOP/s)."""
    left = np.random.default_rng(1).random((MATRIX, MATRIX))
    cpus = len(os.sched_getaffinity(0))
    results = [np.empty_like(left) for _ in range(cpus)]
    samples = samples_s(lambda cpu: np.matmul(left, left, out=results[cpu]))
    return [2 * MATRIX**3 * cpus / seconds / 1e9 for seconds in samples]


def free_memory() -> float:
    """Return the share of this node's memory that is available."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {words[0]: int(words[1]) for words in lines}
    return sizes["MemAvailable:"] / sizes["MemTotal:"]


def shm_bytes() -> int:
    """Return the free space of /dev/shm (bytes)."""
    status = os.statvfs("/dev/shm")  # noqa: S108  # the place is what is measured
    return status.f_bavail * status.f_frsize


def read_mbs() -> list[float]:
    """Return rates at which this node reads a file of its neighbour in the shared directory (MB/s)."""
    own, other = (Path(f"data-{number}") for number in (RANK, (RANK + 1) % SIZE))
    with own.open("wb") as file:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    COMM.Barrier()
    rates = []
    for _ in range(READS):
        with other.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            while file.read(1 << 20):
                pass
            rates.append(FILE_BYTES / (time.perf_counter() - start) / 1e6)
    COMM.Barrier()
    own.unlink()
    return rates


def skew_s() -> float:
    """Return how far this node's clock is ahead of rank 0's (seconds), by the fastest of several answers."""
    if RANK:
        for _ in range(CLOCK_MESSAGES):
            COMM.recv(source=0)
            COMM.send(time.time(), dest=0)
        return float(COMM.recv(source=0))
    for other in range(1, SIZE):
        answers = []
        for _ in range(CLOCK_MESSAGES):
            start = time.time()
            COMM.send(None, dest=other)
            theirs = COMM.recv(source=other)
            end = time.time()
            answers.append((end - start, theirs - (start + end) / 2))
        COMM.send(min(answers)[1], dest=other)
    return 0.0


def partners(rank: int, size: int) -> Iterator[int]:
    """Yield a rank's partner in each round of a tournament in which all pairs meet once; -1 for none.

    The circle method: the last player stays, all others move on by one seat in each round.
    """
    players = size + size % 2
    for turn in range(players - 1):
        if rank == players - 1:
            other = turn * (players // 2) % (players - 1)
        else:
            other = (turn - rank) % (players - 1)
            if other == rank:
                other = players - 1
        yield other if other < size else -1


def pair(other: int) -> dict[str, list[float]]:
    """Return the values of a pair: latencies (one way) and bandwidths of messages with another rank."""

    def bounce(elements: int) -> float:
        data = buffers[elements]
        start = time.perf_counter()
        if other > RANK:
            COMM.Send(data, dest=other)
            COMM.Recv(data, source=other)
        else:
            COMM.Recv(data, source=other)
            COMM.Send(data, dest=other)
        return time.perf_counter() - start

    large = MESSAGE_BYTES // 8
    buffers = {elements: np.ones(elements) for elements in (1, large)}
    latencies = [float(np.median([bounce(1) for _ in range(SMALL_MESSAGES)])) / 2 for _ in range(SAMPLES)]
    bounce(large)
    seconds = [min(bounce(large) for _ in range(LARGE_MESSAGES)) for _ in range(SAMPLES)]
    return {
        "latency_us": [time_s * 1e6 for time_s in latencies],
        "bandwidth_gbs": [2 * MESSAGE_BYTES / time_s / 1e9 for time_s in seconds],
    }


def gpus() -> list[dict[str, str]]:
    """Return NVIDIA's GPUs of this node: index, name and values, or the line that is not one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = f"--query-gpu=index,name,{','.join(GPU_VALUES.values())}"
    done = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=False
    )
    keys = ("index", "name", *GPU_VALUES)
    rows = [(line, [word.strip() for word in line.split(",")]) for line in done.stdout.splitlines()]
    return [
        dict(zip(keys, words, strict=True)) if len(words) == len(keys) else {"error": line}
        for line, words in rows
    ]


# In this order: the first ones before memory is taken and the clocks have run apart.
OF_NODE = (free_memory, shm_bytes, gpus, skew_s, memory_gbs, gemm_gflops, read_mbs)


def main() -> None:
    """Measure and report."""
    values = {measure.__name__: measure() for measure in OF_NODE}
    met = []
    for other in partners(RANK, SIZE):
        COMM.Barrier()
        if other >= 0:
            met.append({"other": other, **pair(other)})
    COMM.Barrier()
    envbuild_job.report(rank=RANK, size=SIZE, pairs=met, **values)


if __name__ == "__main__":
    main()
