"""What is wrong with a process before it runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.check.preflight.simulate import Process, Simulation
from envbuild.elf.loader import Loaded
from envbuild.elf.mpi import mpi_abi

OBJECTS = "P1.objects"
LIBRARIES = "P1.libraries"
VERSIONS = "P1.versions"
SYMBOLS = "P1.symbols"
MPI_ABI = "P1.mpi-abi"
COPIES = "P1.copies"
RPATH = "P1.rpath"
OPENED = "P1.opened"
CUDNN = "P1.cudnn"
PYTHON = "P1.python-requires"
PYTHON_ABI = "P1.python-abi"

# Rule → what is expected, for people; most of every process.
RULES = {
    OBJECTS: "every ELF file is whole",
    LIBRARIES: "every library is found",
    VERSIONS: "every version is defined by the library that wins",
    SYMBOLS: "every symbol of MPI, NCCL and cuDNN is defined by the library that wins",
    MPI_ABI: "every user of MPI gets its own family",
    COPIES: "one libmpi, libnccl, libcudart and libcudnn per process",
    RPATH: "no DT_RPATH ties a program to one libmpi",
    OPENED: "what is opened by name is found",
    CUDNN: "all parts of cuDNN come from one directory",
    PYTHON: "every requirement of a Python distribution is met",
    PYTHON_ABI: "every extension module is for the image's Python",
}
_SOME = 4
# Functions that want a datatype, which for Open MPI is an object of its own.
_TYPED = re.compile(r"P?MPI_I?(Send|Recv|Bcast|Reduce|Allreduce|Allgather|Gather|Scatter|Alltoall)v?")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One thing that is wrong.

    Attributes
    ----------
    rule : str
        Its stable id.
    file : str
        What asks.
    need : str
        What it asks for.
    winner : str
        What it gets, and by which of the loader's rules; or ``nothing``.
    hint : str
        What to do.
    """

    rule: str
    file: str
    need: str
    winner: str
    hint: str


def judge(process: Process, simulation: Simulation) -> Iterator[Problem]:
    """Yield what is wrong with a process, but for libraries that nothing has."""
    objects = process.closure.objects
    for asking in objects:
        yield from _versions(asking, objects, simulation)
        yield from _mpi_abi(asking, simulation)
        yield from _opened(asking, simulation)
    yield from _symbols(process, simulation)
    yield from _copies(process, simulation)
    yield from _rpath(process, simulation)
    yield from _cudnn(process, simulation)


def _versions(asking: Loaded, objects: Sequence[Loaded], simulation: Simulation) -> Iterator[Problem]:
    for library, versions in asking.found.versions_needed.items():
        winner = asking.needs.get(library) or next((one for one in objects if library in one.names), None)
        # A library without any versions serves all; the loader says so, and goes on.
        if winner is None or not winner.found.versions_defined:
            continue
        lacking = [version for version in versions if version not in winner.found.versions_defined]
        if lacking:
            hint = (
                "it was built on a newer system than the image's base: take a newer base, "
                "or a build for an older one"
            )
            yield Problem(
                rule=VERSIONS,
                file=simulation.path_of(asking),
                need=f"{library} with {_some(lacking)}",
                winner=_who(winner, simulation),
                hint=hint,
            )


def _symbols(process: Process, simulation: Simulation) -> Iterator[Problem]:
    objects = process.closure.objects
    offered = {name for one in objects for name in simulation.scanned(one).symbols.defined}
    for asking in objects:
        undefined = simulation.scanned(asking).symbols.undefined - offered
        if not undefined:
            continue
        for name, family in simulation.table.families.items():
            lacking = sorted(one for one in undefined if one.startswith(family.symbols))
            winner = next((got for got in asking.needs.values() if family.concerns(sorted(got.names))), None)
            if lacking and winner is not None:
                yield Problem(
                    rule=SYMBOLS,
                    file=simulation.path_of(asking),
                    need=f"{_some(lacking)} of {name}",
                    winner=_who(winner, simulation),
                    hint="run it on the image's own library, or build it against that release",
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
                rule=MPI_ABI,
                file=simulation.path_of(asking),
                need=f"{name} of the {wants} ABI",
                winner=f"{_who(winner, simulation)}, of the {has} ABI",
                hint="families of MPI share names, not meanings: build it with the image's own MPI",
            )


def _wanted_family(name: str, undefined: frozenset[str]) -> str:
    if any(symbol.startswith("ompi_") for symbol in undefined):
        return "openmpi"
    if name.startswith("libmpi_abi."):
        return "standard"
    if re.search(r"\.so\.(20|40)\b", name):
        return "openmpi"
    # Who calls such a function without Open MPI's objects was not built with it.
    if re.search(r"\.so\.12\b", name) and any(_TYPED.fullmatch(symbol) for symbol in undefined):
        return "mpich"
    return ""


def _copies(process: Process, simulation: Simulation) -> Iterator[Problem]:
    for name, family in simulation.table.families.items():
        copies = [
            one
            for one in process.closure.objects
            if family.is_library(one.path.rpartition("/")[2], one.found.soname)
        ]
        if len(copies) > 1:
            asking = simulation.path_of(copies[1].parent) if copies[1].parent else process.path
            yield Problem(
                rule=COPIES,
                file=process.path,
                need=f"one lib{name}",
                winner="; ".join(sorted(_who(one, simulation) for one in copies)),
                hint=f"{asking} brings the second: one hides the other, and each keeps a state of its own",
            )


def _rpath(process: Process, simulation: Simulation) -> Iterator[Problem]:
    family = simulation.table.families["mpi"]
    for one in process.closure.objects:
        parent = one.parent
        if one.rule != "DT_RPATH" or parent is None or not family.is_library(*one.names):
            continue
        # An MPI's own parts may know one another: a host's takes the place of all of them.
        if _directory(simulation.path_of(one)) == _directory(simulation.path_of(parent)):
            continue
        yield Problem(
            rule=RPATH,
            file=simulation.path_of(parent),
            need=_some(sorted(one.names)[:1]),
            winner=_who(one, simulation),
            hint="DT_RPATH comes before LD_LIBRARY_PATH, so that no MPI of a host can take its place: "
            "link with --enable-new-dtags, or `patchelf --remove-rpath`",
        )


def _opened(asking: Loaded, simulation: Simulation) -> Iterator[Problem]:
    for row in simulation.opened(asking):
        lacking = [name for name in row.names if name not in asking.needs]
        if lacking and not row.optional:
            yield Problem(
                rule=OPENED,
                file=simulation.path_of(asking),
                need=_some(lacking),
                winner="nothing",
                hint=f"{row.why}; {row.hint}" if row.hint else row.why,
            )


def _cudnn(process: Process, simulation: Simulation) -> Iterator[Problem]:
    family = simulation.table.families["cudnn"]
    parts = [one for one in process.closure.objects if family.concerns([*one.names, one.found.soname])]
    main = next((one for one in parts if family.is_library(*one.names, one.found.soname)), None)
    if main is None:
        return
    home = _directory(simulation.path_of(main))
    strays = sorted({_who(one, simulation) for one in parts if _directory(simulation.path_of(one)) != home})
    if strays:
        yield Problem(
            rule=CUDNN,
            file=process.path,
            need=f"parts of cuDNN from {home}",
            winner=_some(strays),
            hint="cuDNN refuses parts of another release: keep one cuDNN in the image and on LD_LIBRARY_PATH",
        )


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _who(loaded: Loaded, simulation: Simulation) -> str:
    return f"{simulation.path_of(loaded)} ({loaded.rule})"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SOME])
    return shown if len(names) <= _SOME else f"{shown} and {len(names) - _SOME} more"
