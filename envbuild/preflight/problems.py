"""Problems of a process before it runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.elf.loader import Loaded
from envbuild.elf.mpi import mpi_abi
from envbuild.preflight.simulate import Process, Simulation

# Id → what is expected, for people.
EXPECTED = {
    "loader.objects": "every ELF file is whole",
    "loader.libraries": "every library is found",
    "loader.versions": "every version is defined by the library that is loaded",
    "loader.symbols": "every symbol of MPI, NCCL and cuDNN is defined by the library that is loaded",
    "loader.mpi-abi": "every program of MPI loads a libmpi of the ABI that it was built for",
    "loader.copies": "one libmpi, libnccl, libcudart and libcudnn per process",
    "loader.opened": "every library that is opened by name is found",
    "loader.cudnn": "all parts of cuDNN come from one directory",
    "python.requires": "every requirement of a Python distribution is met",
    "python.abi": "every extension module is for the image's Python",
}
_SHOWN = 4
# Functions that take a datatype, which for Open MPI is an object of its library.
_TYPED = re.compile(r"P?MPI_I?(Send|Recv|Bcast|Reduce|Allreduce|Allgather|Gather|Scatter|Alltoall)v?")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A problem of a file."""

    rule: str
    """One of `EXPECTED`."""
    file: str
    """The file that needs something."""
    need: str
    """What it needs."""
    winner: str
    """What it gets, and by which of the loader's rules; or ``nothing``."""
    hint: str
    """What to do."""


def judge(process: Process, simulation: Simulation) -> Iterator[Problem]:
    """Yield the problems of a process, but for missing libraries."""
    objects = process.closure.objects
    for asking in objects:
        yield from _versions(asking, objects, simulation)
        yield from _mpi_abi(asking, simulation)
        yield from _opened(asking, simulation)
    yield from _symbols(process, simulation)
    yield from _copies(process, simulation)
    yield from _cudnn(process, simulation)


def _versions(asking: Loaded, objects: Sequence[Loaded], simulation: Simulation) -> Iterator[Problem]:
    for library, versions in asking.found.versions_needed.items():
        winner = asking.needs.get(library) or next(
            (loaded for loaded in objects if library in loaded.names), None
        )
        # A library without any versions serves all; the loader prints a warning, and goes on.
        if winner is None or not winner.found.versions_defined:
            continue
        lacking = [version for version in versions if version not in winner.found.versions_defined]
        if lacking:
            yield Problem(
                "loader.versions",
                simulation.path_of(asking),
                f"{library} with {_some(lacking)}",
                _where(winner, simulation),
                "it was built on a newer system than the image's base: take a newer base, "
                "or a build for an older one",
            )


def _symbols(process: Process, simulation: Simulation) -> Iterator[Problem]:
    objects = process.closure.objects
    offered = {name for loaded in objects for name in simulation.scanned(loaded).symbols.defined}
    for asking in objects:
        undefined = simulation.scanned(asking).symbols.undefined - offered
        if not undefined:
            continue
        for name, family in simulation.table.families.items():
            lacking = sorted(symbol for symbol in undefined if symbol.startswith(family.symbols))
            winner = next((got for got in asking.needs.values() if family.concerns(sorted(got.names))), None)
            if lacking and winner is not None:
                yield Problem(
                    "loader.symbols",
                    simulation.path_of(asking),
                    f"{_some(lacking)} of {name}",
                    _where(winner, simulation),
                    "run it on the image's own library, or build it against that release",
                )


def _mpi_abi(asking: Loaded, simulation: Simulation) -> Iterator[Problem]:
    family = simulation.table.families["mpi"]
    for name, winner in asking.needs.items():
        if not family.is_library(name):
            continue
        has = mpi_abi(winner.found.soname or name, simulation.scanned(winner).symbols.defined)
        wants = _wanted_family(name, simulation.scanned(asking).symbols.undefined)
        if has and wants and has.partition("-")[0] != wants:
            yield Problem(
                "loader.mpi-abi",
                simulation.path_of(asking),
                f"{name} of the {wants} ABI",
                f"{_where(winner, simulation)}, of the {has} ABI",
                "the same file name, and another ABI: build it with the image's own MPI",
            )


def _wanted_family(name: str, undefined: frozenset[str]) -> str:
    if any(symbol.startswith("ompi_") for symbol in undefined):
        return "openmpi"
    if name.startswith("libmpi_abi."):
        return "standard"
    if re.search(r"\.so\.(20|40)\b", name):
        return "openmpi"
    # A caller of such a function that needs none of Open MPI's objects was not built with it.
    if re.search(r"\.so\.12\b", name) and any(_TYPED.fullmatch(symbol) for symbol in undefined):
        return "mpich"
    return ""


def _copies(process: Process, simulation: Simulation) -> Iterator[Problem]:
    for name, family in simulation.table.families.items():
        copies = [
            loaded
            for loaded in process.closure.objects
            if family.is_library(loaded.path.rpartition("/")[2], loaded.found.soname)
        ]
        if len(copies) > 1:
            asking = simulation.path_of(copies[1].parent) if copies[1].parent else process.path
            yield Problem(
                "loader.copies",
                process.path,
                f"one lib{name}",
                "; ".join(sorted(_where(copy, simulation) for copy in copies)),
                f"{asking} brings the second: symbols and state are split between them",
            )


def rpath_files(process: Process, simulation: Simulation) -> Iterator[str]:
    """Yield the files whose DT_RPATH leads to a libmpi: no other MPI can take its place."""
    family = simulation.table.families["mpi"]
    for loaded in process.closure.objects:
        parent = loaded.parent
        if loaded.rule != "DT_RPATH" or parent is None or not family.is_library(*loaded.names):
            continue
        # An MPI's own parts may lead to one another: a host's takes the place of all of them.
        if _directory(simulation.path_of(loaded)) != _directory(simulation.path_of(parent)):
            yield simulation.path_of(parent)


def _opened(asking: Loaded, simulation: Simulation) -> Iterator[Problem]:
    for row in simulation.opened(asking):
        lacking = [name for name in row.names if name not in asking.needs]
        if lacking and not row.optional:
            hint = f"{row.why}; {row.hint}" if row.hint else row.why
            yield Problem("loader.opened", simulation.path_of(asking), _some(lacking), "nothing", hint)


def _cudnn(process: Process, simulation: Simulation) -> Iterator[Problem]:
    family = simulation.table.families["cudnn"]
    parts = [part for part in process.closure.objects if family.concerns([*part.names, part.found.soname])]
    main = next((part for part in parts if family.is_library(*part.names, part.found.soname)), None)
    if main is None:
        return
    home = _directory(simulation.path_of(main))
    strays = sorted(
        {_where(part, simulation) for part in parts if _directory(simulation.path_of(part)) != home}
    )
    if strays:
        hint = "cuDNN refuses parts of another release: keep one cuDNN in the image and on LD_LIBRARY_PATH"
        yield Problem("loader.cudnn", process.path, f"parts of cuDNN from {home}", _some(strays), hint)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _where(loaded: Loaded, simulation: Simulation) -> str:
    return f"{simulation.path_of(loaded)} ({loaded.rule})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
