"""Problems of a process before it runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envbuild.elf.loader import Closure, Loaded
from envbuild.elf.mpi import mpi_abi
from envbuild.errors import some
from envbuild.jobs.report import CheckResult
from envbuild.preflight.processes import Simulation

# Rule → the expected state.
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
# Functions that take a datatype, which for Open MPI is an object of its library.
_TYPED = re.compile(r"P?MPI_I?(Send|Recv|Bcast|Reduce|Allreduce|Allgather|Gather|Scatter|Alltoall)v?")


def mismatch(check: str, *, file: str, need: str, winner: str, hint: str) -> CheckResult:
    """Return the failed check of a file that needs something and gets another thing, or nothing.

    `winner` is the file that it gets, and the loader's rule that leads there; or ``nothing``.
    """
    return CheckResult("FAIL", check, need, winner, hint, subject=file)


def order_of(check: CheckResult) -> tuple[str, ...]:
    """Return the key by which problems are sorted: rule, file, what it needs and gets."""
    return check.id, check.subject, check.expected, check.observed, check.hint


def judge(process: Closure, simulation: Simulation) -> Iterator[CheckResult]:
    """Yield the problems of a process, except missing libraries."""
    objects = process.objects
    for dependent in objects:
        yield from _versions(dependent, objects, simulation)
        yield from _mpi_abi(dependent, simulation)
        yield from _dlopens(dependent, simulation)
    yield from _symbols(process, simulation)
    yield from _copies(process, simulation)
    yield from _cudnn(process, simulation)


def _versions(dependent: Loaded, objects: Sequence[Loaded], simulation: Simulation) -> Iterator[CheckResult]:
    for library, versions in dependent.elf.versions_needed.items():
        winner = dependent.needs.get(library) or next(
            (loaded for loaded in objects if library in loaded.names), None
        )
        # A library without versions serves all; the loader only prints a warning.
        if winner is None or not winner.elf.versions_defined:
            continue
        lacking = [version for version in versions if version not in winner.elf.versions_defined]
        if lacking:
            yield mismatch(
                "loader.versions",
                file=simulation.path_of(dependent),
                need=f"{library} with {some(lacking)}",
                winner=_where(winner, simulation),
                hint="it was built on a newer system than the image's base: take a newer base, "
                "or a build for an older one",
            )


def _symbols(process: Closure, simulation: Simulation) -> Iterator[CheckResult]:
    objects = process.objects
    offered = {name for loaded in objects for name in simulation.scanned(loaded).symbols.defined}
    for dependent in objects:
        undefined = simulation.scanned(dependent).symbols.undefined - offered
        if not undefined:
            continue
        for name, family in simulation.table.families.items():
            lacking = sorted(symbol for symbol in undefined if symbol.startswith(family.symbols))
            winner = next(
                (library for library in dependent.needs.values() if family.concerns(sorted(library.names))),
                None,
            )
            if lacking and winner is not None:
                yield mismatch(
                    "loader.symbols",
                    file=simulation.path_of(dependent),
                    need=f"{some(lacking)} of {name}",
                    winner=_where(winner, simulation),
                    hint="run it on the image's own library, or build it against that release",
                )


def _mpi_abi(dependent: Loaded, simulation: Simulation) -> Iterator[CheckResult]:
    family = simulation.table.families["mpi"]
    for name, winner in dependent.needs.items():
        if not family.is_library(name):
            continue
        actual = mpi_abi(winner.elf.soname or name, simulation.scanned(winner).symbols.defined)
        required = _required_abi(name, simulation.scanned(dependent).symbols.undefined)
        if actual and required and actual.partition("-")[0] != required:
            yield mismatch(
                "loader.mpi-abi",
                file=simulation.path_of(dependent),
                need=f"{name} of the {required} ABI",
                winner=f"{_where(winner, simulation)}, of the {actual} ABI",
                hint="the same file name, and another ABI: build it with the image's own MPI",
            )


def _required_abi(name: str, undefined: frozenset[str]) -> str:
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


def _copies(process: Closure, simulation: Simulation) -> Iterator[CheckResult]:
    for name, family in simulation.table.families.items():
        copies = [
            loaded
            for loaded in process.objects
            if family.is_library(loaded.path.rpartition("/")[2], loaded.elf.soname)
        ]
        if len(copies) > 1:
            dependent = simulation.path_of(copies[1].parent) if copies[1].parent else process.objects[0].path
            yield mismatch(
                "loader.copies",
                file=process.objects[0].path,
                need=f"one lib{name}",
                winner="; ".join(sorted(_where(copy, simulation) for copy in copies)),
                hint=f"{dependent} brings the second: symbols and state are split between them",
            )


def rpath_files(process: Closure, simulation: Simulation) -> Iterator[str]:
    """Yield the files whose DT_RPATH leads to a libmpi, which no other MPI can then replace."""
    family = simulation.table.families["mpi"]
    for loaded in process.objects:
        parent = loaded.parent
        if loaded.rule != "DT_RPATH" or parent is None or not family.is_library(*loaded.names):
            continue
        # An MPI's own parts may lead to each other: a host's MPI replaces all of them.
        if _directory(simulation.path_of(loaded)) != _directory(simulation.path_of(parent)):
            yield simulation.path_of(parent)


def _dlopens(dependent: Loaded, simulation: Simulation) -> Iterator[CheckResult]:
    for rule in simulation.dlopens(dependent):
        lacking = [name for name in rule.names if name not in dependent.needs]
        if lacking and not rule.optional:
            hint = f"{rule.why}; {rule.hint}" if rule.hint else rule.why
            path = simulation.path_of(dependent)
            yield mismatch("loader.opened", file=path, need=some(lacking), winner="nothing", hint=hint)


def _cudnn(process: Closure, simulation: Simulation) -> Iterator[CheckResult]:
    family = simulation.table.families["cudnn"]
    parts = [part for part in process.objects if family.concerns([*part.names, part.elf.soname])]
    main = next((part for part in parts if family.is_library(*part.names, part.elf.soname)), None)
    if main is None:
        return
    directory = _directory(simulation.path_of(main))
    strays = sorted(
        {_where(part, simulation) for part in parts if _directory(simulation.path_of(part)) != directory}
    )
    if strays:
        hint = "cuDNN refuses parts of another release: keep one cuDNN in the image and on LD_LIBRARY_PATH"
        yield mismatch(
            "loader.cudnn",
            file=process.objects[0].path,
            need=f"parts of cuDNN from {directory}",
            winner=some(strays),
            hint=hint,
        )


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _where(loaded: Loaded, simulation: Simulation) -> str:
    return f"{simulation.path_of(loaded)} ({loaded.rule})"
