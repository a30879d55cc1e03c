"""What a look at an image tells of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from envbuild.check.preflight.gpu import frameworks
from envbuild.check.preflight.rules import RPATH, Problem
from envbuild.check.preflight.simulate import Process, Simulation
from envbuild.compat.from_image import ReadFacts
from envbuild.elf.gpu import GpuCode
from envbuild.elf.mpi import mpi_abi
from envbuild.spec.site import MpiAbi

# Under which programs find an MPI's C library.
_MPI_NAMES = ("libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.20", "libmpi.so.40")
_CXX = "libstdc++.so.6"


class Seen:
    """Gathers facts while an image's processes are looked at, one after the other."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._family = simulation.table.families["mpi"]
        self._names: set[str] = set()
        self._abis: set[MpiAbi] = set()
        self._cxx: set[str] = set()
        # Most copies of a library that one process loads.
        self._copies: dict[str, set[str]] = {"nccl": set(), "cudnn": set()}

    def add(self, process: Process) -> None:
        """Note which MPI a process asks for and gets, which C++ library, how many NCCLs and cuDNNs."""
        for name, most in self._copies.items():
            family = self._simulation.table.families[name]
            loaded = [one for one in process.closure.objects if family.is_library(*one.names)]
            paths = {self._simulation.path_of(one) for one in loaded}
            self._copies[name] = max(most, paths, key=len)
        # An MPI's own tools are of no use on another one, and nobody asks for them there.
        own = self._family.owns(process.path, *process.closure.objects[0].names)
        for asking in process.closure.objects:
            for name, winner in asking.needs.items():
                if name == _CXX:
                    self._cxx.update(winner.found.versions_defined)
                # What belongs to an MPI may ask for another part of it.
                if own or not self._family.is_library(name) or self._family.is_library(*asking.names):
                    continue
                abi = mpi_abi(winner.found.soname or name, self._simulation.scanned(winner).symbols.defined)
                # An extension for an MPI that is not there asks for nothing that could be given.
                if abi is not None:
                    self._names.add(name)
                    self._abis.add(abi)

    def told(self, problems: Sequence[Problem], code: Mapping[str, GpuCode]) -> ReadFacts:
        """Return what was noted.

        Parameters
        ----------
        problems : sequence of Problem
            What was wrong with the processes.
        code : mapping of str to GpuCode
            GPU code of the image's files.
        """
        needed = {
            version
            for found in self._simulation.objects.values()
            for versions in found.elf.versions_needed.values()
            for version in versions
        }
        tied = sorted({problem.file for problem in problems if problem.rule == RPATH})
        return ReadFacts(
            mpi_abis=tuple(self._offered()) or None,
            needed_abis=tuple(sorted(self._abis)) or None,
            needed_sonames=tuple(sorted(self._names)) or None,
            rpath_files=tuple(tied),
            nccl_copies=tuple(sorted(self._copies["nccl"])),
            cudnn_copies=tuple(sorted(self._copies["cudnn"])),
            glibc_needed=newest(needed, "GLIBC"),
            libstdcxx_needed=newest(needed, "GLIBCXX"),
            libstdcxx_image=newest(self._cxx, "GLIBCXX"),
            gpu_code=frameworks(code),
        )

    def _offered(self) -> list[MpiAbi]:
        """Return the ABIs of what a program gets that opens an MPI by name, sorted."""
        found = (self._simulation.find(name) for name in _MPI_NAMES)
        abis = (mpi_abi(one.elf.soname, one.symbols.defined) for one in found if one is not None)
        return sorted({abi for abi in abis if abi is not None})


def newest(versions: Iterable[str], kind: str) -> str | None:
    """Return the newest of symbol versions of a kind (``2.34`` of ``GLIBC_2.34``); None for none."""
    found = [
        match[1] for version in versions if (match := re.fullmatch(rf"{kind}_([0-9]+(\.[0-9]+)*)", version))
    ]
    return max(found, key=lambda text: [int(part) for part in text.split(".")], default=None)
