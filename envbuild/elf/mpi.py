"""The ABI of a libmpi, by its symbols. Pure."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Literal

Abi = Literal["standard", "mpich", "openmpi-12", "openmpi-20", "openmpi-40"]

# Symbols that decide the ABI.
TELLTALES = ("MPI_Init", "MPI_UNWEIGHTED", "MPI_Abi_get_version", "ompi_mpi_comm_world")
_SERIES: dict[str, Abi] = {"12": "openmpi-12", "20": "openmpi-20", "40": "openmpi-40"}


def mpi_abi(soname: str, defined_symbols: AbstractSet[str]) -> Abi | None:
    """Return the ABI of a library with MPI's C functions; None for anything else.

    Symbols alone decide the family; `defined_symbols` contains at least those of `TELLTALES` that it defines.
    Open MPI's handles are objects that it exports. MPICH's ABI has ``MPI_UNWEIGHTED`` as an object, which is
    a constant in the standard ABI; libraries of both have ``MPI_Abi_get_version``. ``MPIR_…`` decides
    nothing: Open MPI exports such names for debuggers. The number in an Open MPI's soname is its series.
    """
    if "MPI_Init" not in defined_symbols:
        return None
    if "ompi_mpi_comm_world" in defined_symbols:
        series = re.search(r"\.so\.([0-9]+)", soname)
        return _SERIES.get(series[1]) if series else None
    if "MPI_UNWEIGHTED" in defined_symbols:
        return "mpich"
    return "standard" if "MPI_Abi_get_version" in defined_symbols else None
