# /// job
# id: pytorch.reading
# launcher: any
# title: MB per second of reading a data set, and its share of a training's time
# expect: {images: "10240", sum: 40*255*128*3072, staged_images: "10240", staged_sum: 40*255*128*3072}
# measures:
#   shared: {unit: MB/s}
#   staging: {unit: MB/s}
#   local: {unit: MB/s}
#   reading_shared: {unit: "%", higher_is_better: false}
#   reading_local: {unit: "%", higher_is_better: false}
#   cached: {unit: "%", higher_is_better: false}
# hint: a rank read other bytes than it wrote; is a file system full?
# ///
"""Reading of a data set: from the file system of all nodes, and from the node's own after it was staged.

Each rank has a file of 31 MB, as CIFAR-10 has them: images of 32 x 32 in three colours. It is written where
the ranks report, which all nodes see, and copied to the temporary directory of the node. Before each
measurement the node's page cache is asked to forget the file; `cached` is the share that it kept nevertheless
(the most of all measurements). Servers have caches of their own. Then a small network takes a step on each
64 images: `reading_shared` and `reading_local` are the shares of the time in which it waits for them.
"""

import ctypes
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import envbuild_job
import group
import torch
import torch.distributed as dist

IMAGES, IMAGE_BYTES, BATCH = 10_240, 3 * 32 * 32, 64
BLOCK_BYTES = 1 << 20
MEGABYTES = IMAGES * IMAGE_BYTES / 1e6


def main() -> None:
    """Make the data set, read, stage and read it, and report."""
    rank, size = group.start()
    torch.set_num_threads(min(int(os.environ["OMP_NUM_THREADS"]), len(os.sched_getaffinity(0))))
    shared = Path(os.environ["ENVBUILD_RESULTS"], f"images-{rank}")
    make(shared, rank)
    cached = []

    def seconds(path: Path, work: Callable[[], None]) -> float:
        """Return how long all ranks' work on their files takes, which the page cache does not have."""
        cached.append(forget(path))
        dist.barrier()
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    with tempfile.TemporaryDirectory() as directory:
        local = Path(directory, "images")
        shared_s = seconds(shared, lambda: read(shared))
        staging_s = seconds(shared, lambda: stage(shared, local))
        local_s = seconds(local, lambda: read(local))
        cached += [forget(shared), forget(local)]
        dist.barrier()
        images, total, reading_shared = train(shared)
        staged_images, staged_total, reading_local = train(local)
    shared.unlink()
    envbuild_job.report(
        rank=rank,
        size=size,
        images=images,
        sum=total,
        staged_images=staged_images,
        staged_sum=staged_total,
        shared=MEGABYTES / shared_s,
        staging=MEGABYTES / staging_s,
        local=MEGABYTES / local_s,
        reading_shared=100 * reading_shared,
        reading_local=100 * reading_local,
        cached=100 * max(cached),
    )
    dist.destroy_process_group()


def make(path: Path, rank: int) -> None:
    """Write the file: image i consists of the byte i + rank, so that the sum of all bytes is known."""
    with path.open("wb") as file:
        for image in range(IMAGES):
            file.write(bytes([(image + rank) % 256]) * IMAGE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def stage(source: Path, target: Path) -> None:
    """Copy a file to storage, not into the page cache alone."""
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def read(path: Path) -> None:
    """Read a file from its beginning to its end."""
    block = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


def forget(path: Path) -> float:
    """Ask the page cache to forget a file; return the share that it keeps."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # Not read-only: else its address is not to be had.
        with mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as area:
            pages = -(-len(area) // mmap.PAGESIZE)
            states = (ctypes.c_ubyte * pages)()
            first = ctypes.c_char.from_buffer(area)
            address = ctypes.c_void_p(ctypes.addressof(first))
            failed = ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(len(area)), states)
            del first
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(state & 1 for state in states) / pages


def train(path: Path) -> "tuple[int, int, float]":
    """Take a step on each batch of a file; return images, the sum of bytes, and reading's share of time."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    model(torch.zeros(1, 3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    labels = torch.zeros(BATCH, dtype=torch.long)
    images, total, reading_s = 0, 0, 0.0
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while True:
            block = bytearray(BATCH * IMAGE_BYTES)
            before = time.perf_counter()
            count = file.readinto(block)
            reading_s += time.perf_counter() - before
            if count < len(block):
                break
            batch = torch.frombuffer(block, dtype=torch.uint8)
            total += int(batch.sum(dtype=torch.int64))
            images += BATCH
            optimizer.zero_grad()
            scores = model(batch.view(BATCH, 3, 32, 32).float())
            torch.nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
    return images, total, reading_s / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
