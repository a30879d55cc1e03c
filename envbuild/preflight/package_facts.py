"""Facts of an image's Python packages: their versions, and what their modules were compiled for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.utils import canonicalize_name

from envbuild.jobs.envbuild_libraries import major_of
from envbuild.preflight.components import components
from envbuild.preflight.scan import FileSystemScan, ScannedFile
from envbuild.rules.extensions import facts_of_version, nccl_of, pinned
from envbuild.rules.facts import Fact, Value

_PLACE = re.compile(r"(.*/(?:site|dist)-packages)/")
_TAG = re.compile(r"\.cpython-([0-9])([0-9]+)t?-")
_LIBRARIES_OF_PYTHON = re.compile(r".*/lib(?:32|64)?/python3\.[0-9]+(t?)")
# Python imports neither.
_LIBRARY = re.compile(r".*/(?:lib[^/]*\.so[^/]*|[^/]*\.so\.[^/]*)")
_TORCH_LIBRARY = re.compile(r"lib(c10|torch)(_[a-z0-9_]+)?\.so")
_MPI_SERIES = {"20": "openmpi-20", "40": "openmpi-40"}


def package_facts(scan: FileSystemScan) -> dict[str, Fact]:
    """Return the facts of all Python packages of an image.

    Of a package that the image has in several versions, or several places, they are unknown.
    """
    places: dict[str, list[str]] = {}
    for path, distribution in sorted(scan.distributions.items()):
        places.setdefault(canonicalize_name(distribution.name), []).append(path)
    facts = {"packages": Fact(tuple(sorted(places)), "image")}
    modules = _modules(scan)
    for name, paths in places.items():
        versions = {scan.distributions[path].version for path in paths}
        if len(versions) == 1:
            facts[f"packages.{name}"] = Fact(versions.pop(), f"image:{paths[0]}")
        if len(paths) == 1:
            facts |= _compiled(name, paths[0], modules.get(paths[0], {}), scan)
    if free_threaded := _free_threaded(scan):
        facts["python.free_threaded"] = free_threaded
    return facts | _of_frameworks(scan)


def _modules(scan: FileSystemScan) -> dict[str, dict[str, ScannedFile]]:
    """Return the compiled files of each distribution, by the path of its metadata.

    Without a ``RECORD`` they are those below the directory with the distribution's name.
    """
    by_name = {
        (place[1], canonicalize_name(distribution.name)): path
        for path, distribution in scan.distributions.items()
        if (place := _PLACE.match(path))
    }
    modules: dict[str, dict[str, ScannedFile]] = {}
    for path, file in sorted(scan.objects.items()):
        owner = scan.owners.get(path)
        if owner is None and (place := _PLACE.match(path)):
            top = path.removeprefix(place[0]).partition("/")[0].partition(".")[0]
            owner = by_name.get((place[1], canonicalize_name(top)))
        if owner is not None:
            modules.setdefault(owner, {})[path] = file
    return modules


def _compiled(
    name: str, metadata: str, modules: Mapping[str, ScannedFile], scan: FileSystemScan
) -> dict[str, Fact]:
    """Return what the modules of a distribution were compiled for, as far as all of them agree."""
    distribution = scan.distributions[metadata]
    pins = pinned(distribution.requires)
    numpy = {path: file.compiled.numpy or None for path, file in modules.items()}
    # Libraries beside the modules may be plug-ins: one for each release of CUDA, one for each MPI.
    imported = {path: file for path, file in modules.items() if not _LIBRARY.fullmatch(path)}
    # Modules for an older NumPy fail beside a newer one, and the others run beside both.
    oldest = min(filter(None, numpy.values()), default=None)
    parts = {
        "python": _agreed({path: _python(path) for path in modules}),
        "numpy": _agreed({path: major for path, major in numpy.items() if major == oldest}),
        "cxx11_abi": _agreed({path: file.compiled.cxx11_abi for path, file in modules.items()}),
        "toolkit": _agreed({path: _cuda_major(file) for path, file in imported.items()}),
        "mpi_abi": _agreed({path: _mpi_abi(file) for path, file in imported.items()}),
    }
    if "torch" in pins and any(map(_uses_torch, modules.values())):
        parts["framework"] = Fact(pins["torch"], f"image:{metadata}")
    facts = {f"packages.{name}.{part}": fact for part, fact in parts.items() if fact is not None}
    stated = facts_of_version(name, distribution.version)
    return facts | {path: Fact(value, f"image:{metadata}") for path, value in stated.items()}


def _of_frameworks(scan: FileSystemScan) -> dict[str, Fact]:
    """Return the NCCL that PyTorch pins, and the C++ ABI of its libraries, if all copies agree."""
    nccl = {
        path: nccl_of(pinned(distribution.requires))
        for path, distribution in scan.distributions.items()
        if canonicalize_name(distribution.name) == "torch"
    }
    abi = {
        path: file.compiled.cxx11_abi for path, file in scan.objects.items() if file.elf.soname == "libc10.so"
    }
    facts = {"nccl.built": _agreed(nccl), "frameworks.pytorch.cxx11_abi": _agreed(abi)}
    return {path: fact for path, fact in facts.items() if fact is not None}


def _agreed(values: Mapping[str, Value | None]) -> Fact | None:
    """Return the value of all files that have one, if it is the same; None otherwise."""
    known = {path: value for path, value in values.items() if value is not None}
    if len(set(known.values())) != 1:
        return None
    path, value = min(known.items())
    return Fact(value, f"image:{path}")


def _python(path: str) -> str | None:
    tag = _TAG.search(path)
    return f"{tag[1]}.{tag[2]}" if tag else None


def _cuda_major(file: ScannedFile) -> str | None:
    majors = {major for library in file.elf.needed if (major := major_of("cudart", library))}
    return majors.pop() if len(majors) == 1 else None


def _mpi_abi(file: ScannedFile) -> str | None:
    """Return the MPI ABI that a file is linked for; see `mpi_abi` on the names and symbols."""
    mpi = components().families["mpi"]
    library = next((name for name in file.elf.needed if mpi.is_library(name)), "")
    if not library or library.startswith("libmpi_abi."):
        return "standard" if library else None
    series = library.rpartition(".so.")[2].partition(".")[0]
    if "ompi_mpi_comm_world" in file.symbols.undefined:
        return f"openmpi-{series}" if series in ("12", "20", "40") else None
    return "mpich" if series == "12" else _MPI_SERIES.get(series)


def _uses_torch(file: ScannedFile) -> bool:
    return any(map(_TORCH_LIBRARY.fullmatch, file.elf.needed))


def _free_threaded(scan: FileSystemScan) -> Fact | None:
    """Return whether the image's only Python is the free-threaded build."""
    kinds = (_LIBRARIES_OF_PYTHON.fullmatch(path) for path in scan.directories)
    return _agreed({kind[0]: bool(kind[1]) for kind in kinds if kind})
