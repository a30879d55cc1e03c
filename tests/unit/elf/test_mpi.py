"""The ABI of a libmpi, told by its symbols."""

from __future__ import annotations

import pytest

from envbuild.elf.mpi import TELLTALES, Abi, mpi_abi

# As seen: MPICH 5.0.2, Intel MPI 2021.19 and Open MPI 5.0.11.
MPICH = {"MPI_Init", "MPI_UNWEIGHTED", "MPI_Abi_get_version", "MPIR_Err_return_comm"}
STANDARD = {"MPI_Init", "MPI_Abi_get_version", "MPIR_Err_return_comm"}
OPEN_MPI = {"MPI_Init", "ompi_mpi_comm_world", "MPIR_debug_gate"}


@pytest.mark.parametrize(
    ("soname", "symbols", "abi"),
    [
        ("libmpi.so.12", MPICH, "mpich"),
        ("libmpi_gnu_123.so.12", MPICH - {"MPI_Abi_get_version"}, "mpich"),
        ("libmpi_abi.so.1", STANDARD, "standard"),
        # MPICH 4.3.0 and 5.0.0 gave theirs other names.
        ("libmpi_abi.so.0", STANDARD, "standard"),
        ("libmpi.so.12", OPEN_MPI, "openmpi-12"),
        ("libmpi.so.20.10", OPEN_MPI, "openmpi-20"),
        ("libmpi.so.40", OPEN_MPI, "openmpi-40"),
        ("libmpi.so.99", OPEN_MPI, None),
        ("libmpi.so", OPEN_MPI, None),
        ("libmpi.so.12", {"MPI_Init"}, None),
        ("libmpi.so.12", set(), None),
        ("libmpifort.so.12", {"MPIR_Err_return_comm", "mpi_init_"}, None),
    ],
)
def test_symbols_tell(soname: str, symbols: set[str], abi: Abi | None) -> None:
    assert mpi_abi(soname, symbols) == abi
    assert mpi_abi(soname, symbols & set(TELLTALES)) == abi
