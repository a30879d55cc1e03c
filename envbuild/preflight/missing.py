"""Judge the libraries that an image lacks: which of them would be loaded, and which are a host's. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from envbuild.elf.loader import Closure, name_of
from envbuild.jobs.envbuild_libraries import DRIVERS, OF_HOST
from envbuild.jobs.report import CheckResult
from envbuild.preflight.problems import mismatch
from envbuild.preflight.processes import Simulation

HINT_IMAGE = "add what brings it to the spec's packages, or name its directory in LD_LIBRARY_PATH"
_HINT_HOST = "a library of the host needs it: add it to `libraries` in the site file"
_HINT_CACHE = (
    "it came after the last `ldconfig`, and the image is read-only: name its directory in LD_LIBRARY_PATH"
)


def judge_missing(
    processes: Sequence[Closure], simulation: Simulation, allowed: Collection[str], *, accelerator: str = ""
) -> tuple[list[CheckResult], set[str]]:
    """Return the problems of missing libraries, and the names of those that are no problem.

    `allowed` are libraries that may be missing, as the recipes say. `accelerator` is what the image is for,
    if that is known.
    """
    missing: dict[str, set[str]] = {}
    incomplete: set[str] = set()
    for process in processes:
        for library in process.missing:
            if library.name not in allowed and not re.fullmatch(DRIVERS, library.name):
                path = simulation.tree.real(library.path) or library.path
                missing.setdefault(path, set()).add(library.name)
                incomplete.add(process.objects[0].path)
    names = {library.name for process in processes for library in process.missing}
    for path in [*missing]:
        if simulation.table.is_optional(path) or _is_unused_runtime(path, simulation):
            del missing[path]
    for path in [
        *_plugins(missing, simulation),
        *_variants(missing, processes, incomplete, simulation, accelerator),
    ]:
        missing.pop(path, None)
    problems = [_problem(path, name, simulation) for path, names in missing.items() for name in names]
    return problems, names - {missing_library.expected for missing_library in problems}


def _problem(path: str, name: str, simulation: Simulation) -> CheckResult:
    uncached = simulation.uncached(name)
    hint = simulation.table.supplier_hint(name) or HINT_IMAGE
    hint = _HINT_HOST if simulation.is_host_file(path) else hint
    winner = f"nothing, for {uncached} is not in the loader's cache" if uncached else "nothing"
    hint = _HINT_CACHE if uncached else hint
    return mismatch("loader.libraries", file=path, need=name, winner=winner, hint=hint)


def _is_unused_runtime(path: str, simulation: Simulation) -> bool:
    """Return whether a file is a compiler's run-time library that nothing in the image needs."""
    elf = simulation.tree.lookup(path)
    names = {path.rpartition("/")[2], elf.soname if elf else ""}
    return simulation.table.is_of_compiler(*names) and not names & simulation.needed


def _plugins(missing: Mapping[str, set[str]], simulation: Simulation) -> set[str]:
    """Return plug-ins whose missing libraries all belong to a host and which no other file needs.

    A host's own library is no plug-in: no other layer can bring the libraries that it lacks.
    """
    names: dict[str, set[str]] = {}
    for path, libraries in missing.items():
        elf = simulation.tree.lookup(path)
        is_plugin = elf is not None and not elf.interpreter and not simulation.is_host_file(path)
        if elf and is_plugin and all(re.fullmatch(OF_HOST, library) for library in libraries):
            names[path] = {name_of(path, elf), path.rpartition("/")[2]}
    while True:
        needed = {
            name for path, file in simulation.objects.items() if path not in names for name in file.elf.needed
        }
        kept = {path: own for path, own in names.items() if not own & needed}
        if kept == names:
            return set(names)
        names = kept


def _variants(
    missing: Mapping[str, set[str]],
    processes: Sequence[Closure],
    incomplete: Collection[str],
    simulation: Simulation,
    accelerator: str,
) -> Iterator[str]:
    """Yield libraries of which a package has several builds, if it opens another one by name.

    Names of builds for several releases differ in digits alone (`libx_cuda12.so`, `libx_cuda13.so`), those
    for several accelerators in the last part (`libx_cpu.so`, `libx_rocm64.so`): one for an accelerator of
    which the image has no library, and which it is not for, is never opened. If no release loads, the newest
    one stands for all.
    """
    opened = {process.objects[0].path for process in processes}
    loading: set[str] = set()
    for path in opened - set(incomplete):
        loading |= {_release(path), _accelerator(path)}
    held = {_stem(name) for name in simulation.names}
    releases: dict[str, list[str]] = {}
    for path, names in missing.items():
        name = path.rpartition("/")[2]
        needed_by = {other for other, file in simulation.objects.items() if name in file.elf.needed}
        # A part of a build serves that build alone.
        if not name.startswith("lib") or not {_build(other) for other in needed_by} <= {_build(path)}:
            continue
        accelerators = filter(simulation.table.is_of_accelerator, names)
        foreign = any(_stem(name) not in held for name in accelerators)
        foreign = foreign and not (accelerator and _stem(path).rpartition("_")[2].startswith(accelerator))
        if _release(path) in loading or (foreign and _accelerator(path) in loading):
            yield path
        else:
            releases.setdefault(_release(path), []).append(path)
    for builds in releases.values():
        yield from sorted(builds, key=_build)[:-1]


def _build(path: str) -> tuple[str, tuple[int, ...]]:
    """Return the directory of a file, and the numbers in its name."""
    directory, _, name = path.rpartition("/")
    return directory, tuple(map(int, re.findall("[0-9]+", name)))


def _stem(name: str) -> str:
    return name.partition(".so")[0]


def _release(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/{re.sub('[0-9]+', '#', name)}"


def _accelerator(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/{_stem(name).rpartition('_')[0]}_*"
