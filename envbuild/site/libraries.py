"""The shared libraries of this machine, as its loader finds them, and the MPIs among them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path

from envbuild.elf.loader import Closure, Search, cache_directories, closure, default_directories
from envbuild.elf.mpi import TELLTALES, mpi_abi
from envbuild.elf.read import ElfObject, read_elf, read_symbols
from envbuild.jobs.envbuild_libraries import OF_MPI
from envbuild.spec.site import MpiAbi, SiteMpi
from envbuild.system.files import list_directory, open_regular
from envbuild.system.survey import Survey

# As `envbuild.spec.site.HostVersion` takes it.
VERSION = r"[0-9]+(?:\.[0-9A-Za-z]+)*"

_LOADER_SETTINGS = "/etc/ld.so.conf"
_MAX_SETTINGS_BYTES = 1 << 16

_BELOW_PREFIX = ("lib", "lib64", "lib/release", "lib/mpich/lib", "lib/mpich")
# Directories for dependencies of an MPI's own libraries.
_BESIDE = ("lib/libfabric", "opt/mpi/libfabric/lib", "libfabric/lib")
# Part of a path → implementation.
_VENDORS = {"/cray/": "cray-mpich", "mvapich": "mvapich2", "parastation": "parastation-mpi"}
# Program, its arguments, a pattern for the version in its output, and the implementation that prints it.
_VERSION_COMMANDS = (
    ("ompi_info", ("--version",), rf"Open MPI v?({VERSION})", "openmpi"),
    ("mpichversion", (), rf"MPICH Version:\s*({VERSION})", "mpich"),
    ("mpiexec", ("--version",), rf"Intel\(R\) MPI Library.*?Version ({VERSION})", "intel-mpi"),
    ("mpiexec", ("--version",), rf"\(Open MPI\) ({VERSION})", "openmpi"),
    ("mpiexec", ("--version",), rf"HYDRA build details:\s+Version:\s+({VERSION})", "mpich"),
)


class HostTree:
    """The libraries below a root; each file is read once."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._objects: dict[str, ElfObject | None] = {}

    def lookup(self, path: str) -> ElfObject | None:
        """Return the ELF file at an absolute path, links followed; None if it is not a valid one."""
        real = self._real(path)
        if real not in self._objects:
            try:
                with open_regular(Path(real)) as file:
                    self._objects[real] = read_elf(file)
            except (OSError, ValueError):
                self._objects[real] = None
        return self._objects[real]

    def abi(self, path: str) -> MpiAbi | None:
        """Return the MPI ABI of a library by its symbols; None if it is no MPI, or cannot be read."""
        library = self.lookup(path)
        try:
            with open_regular(Path(self._real(path))) as file:
                return mpi_abi(library.soname, read_symbols(file, TELLTALES).defined) if library else None
        except (OSError, ValueError):
            return None

    def closure(self, path: str, search: Sequence[str]) -> Closure | None:
        """Return all that this machine's loader loads with a library; None if it is not a library.

        The directories of `search` precede the loader's own, as in LD_LIBRARY_PATH.
        """
        library = self.lookup(path)
        if library is None:
            return None
        default = default_directories(library.machine)
        try:
            return closure(path, self, Search(library_path=tuple(search), cache=self._cache, default=default))
        except ValueError:
            return None

    @cached_property
    def _cache(self) -> tuple[str, ...]:
        """The directories of the loader's cache."""
        directory = f"{_LOADER_SETTINGS}.d"
        names = [f"{directory}/{name}" for name in list_directory(self._root / directory.lstrip("/"))]
        texts = {}
        for name in (_LOADER_SETTINGS, *sorted(names)):
            try:
                with open_regular(self._root / name.lstrip("/")) as file:
                    texts[name] = file.read(_MAX_SETTINGS_BYTES).decode(errors="replace")
            except (OSError, ValueError):
                continue
        return cache_directories(texts)

    def _real(self, path: str) -> str:
        return os.path.realpath(self._root / path.lstrip("/"))


def libraries_below(path: str) -> tuple[str, ...]:
    """Return the shared objects at or below a path, sorted: those that a library may open by itself."""
    if Path(path).is_file():
        return (path,)
    libraries = []
    for directory, below, names in os.walk(path):
        below.sort()
        libraries += [f"{directory}/{name}" for name in sorted(names) if ".so" in name]
    return tuple(libraries)


def find_mpis(
    machine: Survey, tree: HostTree, cached: Mapping[str, str], named: Sequence[str] = ()
) -> tuple[SiteMpi, ...]:
    """Return the MPIs of a machine, the likeliest first.

    `cached` is the loader's cache: soname → path. The directories `named` are searched before those of the
    environment, PATH and the cache.
    """
    mpis: dict[tuple[str, ...], SiteMpi] = {}
    for prefix in (*dict.fromkeys(_prefixes(machine, named)), ""):
        libraries = _below(machine, prefix) if prefix else cached
        for mpi in _mpis_at(machine, tree, prefix, libraries):
            mpis.setdefault(tuple(map(machine.real, mpi.libraries)), mpi)
    return tuple(mpis.values())


def _prefixes(machine: Survey, named: Sequence[str]) -> Iterator[str]:
    variables = (machine.variables.get(name, "") for name in ("MPI_HOME", "I_MPI_ROOT"))
    yield from (_plain(path) for path in (*named, *variables) if path.startswith("/"))
    for name in ("mpiexec", "mpichversion", "ompi_info"):
        program = machine.program(name)
        if program is not None:
            yield _plain(machine.real(program).rpartition("/bin/")[0])
            yield _plain(program.rpartition("/bin/")[0])


def _plain(path: str) -> str:
    """Return a path without `.`, `..` and `//`; empty for the root."""
    return posixpath.normpath(f"/{path.lstrip('/')}").rstrip("/")


def _below(machine: Survey, prefix: str) -> dict[str, str]:
    """Return the libraries below a prefix: name → path."""
    paths: dict[str, str] = {}
    # The system's directories are in the loader's cache.
    for directory in (f"{prefix}/{below}" for below in _BELOW_PREFIX if prefix != "/usr"):
        for name in machine.names(directory):
            paths.setdefault(name, f"{directory}/{name}")
    return paths


def _mpis_at(machine: Survey, tree: HostTree, prefix: str, paths: Mapping[str, str]) -> list[SiteMpi]:
    """Return the MPIs at a prefix: Open MPI, MPICH's family or both; one with an mpiexec first."""
    libraries = {
        name: path
        for name, path in sorted(paths.items())
        if re.fullmatch(OF_MPI, name) and (library := tree.lookup(path)) and library.soname == name
    }
    abis = {name: abi for name, path in libraries.items() if (abi := tree.abi(path)) is not None}
    families = [set(libraries)] if abis else []
    openmpi = {name for name, abi in abis.items() if abi.startswith("openmpi")}
    if openmpi and "mpich" in abis.values():
        # Wheels in one virtual environment: Open MPI's sonames end in another number (``.so.40``).
        series = {name.rpartition(".")[2] for name in openmpi}
        openmpi = {name for name in libraries if name.rpartition(".")[2] in series}
        families = [openmpi, set(libraries) - openmpi]
    mpis = []
    for family in families:
        own = {name: path for name, path in libraries.items() if name in family}
        mpis.append(_mpi(machine, prefix, own, {abis[name] for name in own if name in abis}))
    return sorted(mpis, key=lambda mpi: mpi.launcher is None)


def _mpi(machine: Survey, prefix: str, libraries: Mapping[str, str], abis: AbstractSet[MpiAbi]) -> SiteMpi:
    """Describe an MPI; an empty prefix means that only the loader's cache leads to it.

    Without a certain version, its implementation is derived from its path or ABI.
    """
    is_openmpi = any(abi.startswith("openmpi") for abi in abis)
    paths = tuple(sorted(libraries.values()))
    versions: dict[str, str] = {}
    launcher = _program(machine, prefix, "mpiexec")
    for name, arguments, pattern, implementation in _VERSION_COMMANDS:
        match = re.search(pattern, machine.output_of(_program(machine, prefix, name), *arguments))
        if match and (implementation == "openmpi") == is_openmpi:
            versions.setdefault(implementation, match[1])
        elif match and name == "mpiexec":
            launcher = None  # of another MPI in the same directory
    vendor = next((name for part, name in _VENDORS.items() if any(part in path for path in paths)), None)
    implementation = next(iter(versions), vendor or ("openmpi" if is_openmpi else "mpich"))
    version = versions[implementation] if len(versions) == 1 else None
    companions, environment = _companions(machine, prefix, implementation)
    # Intel MPI opens libfabric by name, without a DT_NEEDED entry.
    fabric = f"{prefix}/lib/libfabric.so.1"
    opened = (fabric,) if implementation == "intel-mpi" and prefix and machine.exists(fabric) else ()
    beside = filter(machine.exists, (f"{prefix}/{name}" for name in _BESIDE))
    return SiteMpi(
        implementation=implementation,
        version=version,
        base_version=version if implementation in ("mpich", "openmpi") else None,
        abis=tuple(sorted(abis)),
        libraries=(*paths, *opened),
        search=tuple(dict.fromkeys((*map(posixpath.dirname, paths), *beside))) if prefix else (),
        companions=companions,
        launcher=launcher,
        environment=environment,
    )


def _program(machine: Survey, prefix: str, name: str) -> str | None:
    path = f"{prefix}/bin/{name}"
    return machine.program(name) if not prefix else path if machine.is_program(path) else None


def _companions(machine: Survey, prefix: str, implementation: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the directories that an MPI opens by itself, and variables with their paths."""
    names = machine.names(f"{prefix}/lib") if prefix else ()
    if implementation == "intel-mpi" and prefix:
        directories = (f"{prefix}/lib", f"{prefix}/opt")
        has_providers = any(name.endswith("-fi.so") for name in names)
        providers = {"FI_PROVIDER_PATH": f"{prefix}/lib"} if has_providers else {}
        return tuple(filter(machine.exists, directories)), {"I_MPI_ROOT": prefix, **providers}
    if implementation == "openmpi" and prefix:
        pmix = {"PMIX_PREFIX": prefix} if "libpmix.so.2" in names else {}
        return (prefix,), {"OPAL_PREFIX": prefix, **pmix}
    return (), {}
