# /// job
# id: mpi.standard-abi
# title: mpi4py on the MPI standard's ABI and no other
# expect: {sum: n*(n+1)//2, abi_major: 1, other_abis: 0}
# hint: "`readelf -d` of mpi4py's extension must name libmpi_abi.so.1 and no other libmpi"
# controls:
#   another operation: [sum]
#   a library that does not know the ABI: [abi_major]
#   an extension for another ABI: [other_abis]
# ///
"""mpi4py on the ABI of the MPI standard, and on no other."""

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
    # control another operation: comm.Allreduce(np.array([rank + 1], dtype=np.int64), total, op=MPI.MAX)
    comm.Allreduce(np.array([rank + 1], dtype=np.int64), total, op=MPI.SUM)

    # The extension contains the names of the libraries that it needs as text.
    # control an extension for another ABI: extension = b"libmpi.so.40\0"
    extension = Path(MPI.__file__).read_bytes()
    # The library that is loaded already; only it knows the version of the ABI.
    library = ctypes.CDLL("libmpi_abi.so.1")
    major, minor = ctypes.c_int(-1), ctypes.c_int(-1)
    # control a library that does not know the ABI: pass
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
