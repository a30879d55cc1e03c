"""mpi4py-abi: its job, spoiled."""

from functools import partial

from tests.recipes.spoil import SINGLETONS, control

_abi = partial(control, "mpi4py-abi", "standard")

CONTROLS = (
    _abi("singletons", "D0/D1.mpi-abi D1.mpi-abi/sum", before=SINGLETONS),
    _abi("another operation", "D1.mpi-abi/sum", ("total, op=MPI.SUM", "total, op=MPI.MAX")),
    _abi(
        "a library that does not know the ABI",
        "D1.mpi-abi/abi_major",
        ("    library.MPI_Abi_get_version(ctypes.byref(major), ctypes.byref(minor))\n", ""),
    ),
    _abi(
        "an extension for another ABI",
        "D1.mpi-abi/other_abis",
        ("Path(MPI.__file__).read_bytes()", 'b"libmpi.so.40\\0"'),
    ),
)
