"""Whether mpi4py runs on the MPI standard's ABI and nothing else; reports what is so, judges nothing."""

import ctypes
from pathlib import Path

import envbuild_job
import numpy as np
from mpi4py import MPI

OTHERS = (b"libmpi.so.12\0", b"libmpi.so.20\0", b"libmpi.so.40\0")


def main() -> None:
    """Add the ranks up and report what the extension and the library are."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    total = np.zeros(1, dtype=np.int64)
    comm.Allreduce(np.array([rank + 1], dtype=np.int64), total, op=MPI.SUM)

    # As the extension was linked: the names of the libraries that it needs stand in it as text.
    extension = Path(MPI.__file__).read_bytes()
    # The file that is loaded already; the ABI's version is known to it alone.
    library = ctypes.CDLL("libmpi_abi.so.1")
    major, minor = ctypes.c_int(-1), ctypes.c_int(-1)
    library.MPI_Abi_get_version(ctypes.byref(major), ctypes.byref(minor))
    envbuild_job.report(
        rank=rank,
        size=size,
        sum=int(total[0]),
        abi_major=major.value,
        other_abis=sum(name in extension for name in OTHERS),
    )


if __name__ == "__main__":
    main()
