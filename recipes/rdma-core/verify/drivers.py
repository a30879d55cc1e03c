# /// job
# id: rdma-core.drivers
# title: libibverbs answers, and its drivers load
# expect: {answers: 1, mlx5: 1, efa: 1, hfi1: 1}
# hint: a driver lacks a library, or is not there
# controls:
#   no answer: [answers]
#   no drivers: [mlx5, efa, hfi1]
# ///
"""Every driver for InfiniBand and RoCE in user space loads beside libibverbs."""

import ctypes
from pathlib import Path

import envbuild_job


def main() -> None:
    """Load libibverbs, ask it for devices, load each driver, and report."""
    rank, size = envbuild_job.launched()
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.c_void_p
    count = ctypes.c_int(-1)
    # A host without RDMA gives none; that it answers is what counts.
    listed = verbs.ibv_get_device_list(ctypes.byref(count))
    # control no drivers: drivers = []
    drivers = sorted(Path("/usr/lib").glob("*/libibverbs/lib*-rdmav*.so"))
    for driver in drivers:
        ctypes.CDLL(str(driver))
    names = [driver.name.partition("-")[0] for driver in drivers]
    envbuild_job.report(
        rank=rank,
        size=size,
        # control no answer: answers=int(listed is not None or count.value > 0),
        answers=int(listed is not None or count.value <= 0),
        mlx5=names.count("libmlx5"),
        efa=names.count("libefa"),
        hfi1=names.count("libhfi1verbs"),
    )


if __name__ == "__main__":
    main()
