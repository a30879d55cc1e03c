"""The MPI and other libraries of a machine: where they are, and what their symbols say."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.elf.loader import Missing, closure
from envbuild.elf.read import ElfObject
from envbuild.site.files import HostTree, abi_of, host_search
from envbuild.spec.site import MpiAbi
from envbuild.system.survey import Survey

# As `envbuild.spec.site.HostVersion` takes it.
VERSION = r"[0-9]+(?:\.[0-9A-Za-z]+)*"

_CACHED = re.compile(r"^\s*(\S+) \((.*)\) => (/.+)$", re.MULTILINE)
_LIBRARY = re.compile(r"lib[A-Za-z0-9_+-]*mpi[A-Za-z0-9_+-]*\.so\.[0-9]+")
_BELOW_PREFIX = ("lib", "lib64", "lib/release", "lib/mpich/lib", "lib/mpich")
# Where an MPI keeps what it loads beside its own libraries.
_BESIDE = ("lib/libfabric", "opt/mpi/libfabric/lib", "libfabric/lib")
_LOADER_WORDS = {"amd64": "x86-64", "arm64": "AArch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMpi:
    """An MPI on this machine."""

    prefix: str
    """Where it is installed; empty if the loader's cache alone leads to it."""
    implementation: str
    """``openmpi``, ``mpich``, ``intel-mpi``, …"""
    version: str | None
    libraries: tuple[str, ...]
    """Paths under the sonames that programs ask for, sorted."""
    abis: tuple[MpiAbi, ...]
    """Of its libraries, by their symbols, sorted."""
    search: tuple[str, ...]
    """Directories of the libraries that it needs."""
    launcher: str | None
    """Its mpiexec."""
    remarks: tuple[str, ...]
    """Sentences on what is missing or uncertain."""


class Libraries:
    """The libraries of a machine, each read once."""

    def __init__(self, machine: Survey) -> None:
        self.machine = machine
        self._tree = HostTree(machine.root)
        self._cache: dict[str, str] | None = None

    def cached(self) -> dict[str, str]:
        """Return the loader's cache for this architecture: soname → path."""
        if self._cache is None:
            listed = self.machine.says(self.machine.program("ldconfig"), "-p")
            word = _LOADER_WORDS.get(self.machine.architecture, "")
            self._cache = {}
            for name, kind, path in _CACHED.findall(listed):
                if word in kind:
                    self._cache.setdefault(name, path)
        return self._cache

    def elf(self, path: str) -> ElfObject | None:
        """Return the library at a path; None for none."""
        return self._tree.lookup(path)

    def abi(self, path: str) -> MpiAbi | None:
        """Return the MPI ABI of a library by its symbols; None for none."""
        found = self.elf(path)
        return None if found is None else abi_of(str(self.machine.path(path)), found)

    def newest(self, soname: str, versions: str) -> str | None:
        """Return the newest version that a library of the cache defines: ``2.36``.

        Parameters
        ----------
        versions : str
            Pattern of what it calls them, with one group for the numbers.
        """
        path = self.cached().get(soname)
        found = None if path is None else self.elf(path)
        if found is None:
            return None
        numbers = (hit[1] for name in found.versions_defined if (hit := re.fullmatch(versions, name)))
        return max(numbers, key=lambda text: tuple(map(int, text.split("."))), default=None)

    def missing(self, path: str, search: Sequence[str]) -> tuple[Missing, ...]:
        """Return what a library needs, directly or not, and nothing of this machine has."""
        where = host_search(tuple(search), self.machine.architecture, self.machine.root)
        try:
            return closure(path, self._tree, where).missing
        except ValueError:
            return ()

    def mpis(self, named: Sequence[str] = ()) -> tuple[HostMpi, ...]:
        """Return the MPIs of this machine, the likeliest first.

        Parameters
        ----------
        named : sequence of str
            Directories where one is installed, before those that the environment, PATH and the loader's cache
            lead to.
        """
        mpis: dict[tuple[str, ...], HostMpi] = {}
        for prefix in dict.fromkeys(self._prefixes(named)):
            for mpi in self._describe(prefix, self._below(prefix)):
                mpis.setdefault(tuple(map(self.machine.real, mpi.libraries)), mpi)
        cached = {name: path for name, path in self.cached().items() if _LIBRARY.fullmatch(name)}
        for mpi in self._describe("", cached):
            mpis.setdefault(tuple(map(self.machine.real, mpi.libraries)), mpi)
        return tuple(mpis.values())

    def _prefixes(self, named: Sequence[str]) -> Iterator[str]:
        variables = (self.machine.variables.get(name, "") for name in ("MPI_HOME", "I_MPI_ROOT"))
        for path in (*named, *variables):
            if path.startswith("/"):
                yield _plain(path)
        for name in ("mpiexec", "mpichversion", "ompi_info"):
            program = self.machine.program(name)
            if program is not None:
                yield self.machine.real(program).rpartition("/bin/")[0]
                yield _plain(program.rpartition("/bin/")[0])

    def _below(self, prefix: str) -> dict[str, str]:
        """Return the MPI libraries below a prefix: soname → path."""
        paths: dict[str, str] = {}
        # The system's directories are the loader's, and so in its cache.
        for below in _BELOW_PREFIX if prefix not in ("", "/usr") else ():
            for name in self.machine.names(f"{prefix}/{below}"):
                if _LIBRARY.fullmatch(name):
                    paths.setdefault(name, f"{prefix}/{below}/{name}")
        return paths

    def _describe(self, prefix: str, paths: dict[str, str]) -> list[HostMpi]:
        """Return the MPIs that some libraries are of: one for each family; first the one with the mpiexec."""
        own = {name: path for name, path in sorted(paths.items()) if self._soname(path) == name}
        abis = {name: abi for name, path in own.items() if (abi := self.abi(path)) is not None}
        families = _families(abis)
        mpis = []
        for family in families:
            # Of a place with one MPI every library is that one's, whatever it needs.
            libraries = own if len(families) == 1 else self._with_dependents(family, own)
            mpis.append(
                self._mpi(prefix, libraries, {name: abis[name] for name in family}, others=len(families) > 1)
            )
        return sorted(mpis, key=lambda mpi: mpi.launcher is None)

    def _with_dependents(self, names: frozenset[str], own: dict[str, str]) -> dict[str, str]:
        """Return the libraries of these names, and all that need one of them."""
        libraries = {name: own[name] for name in own if name in names}
        while more := {
            name: path
            for name, path in own.items()
            if name not in libraries
            and (elf := self.elf(path)) is not None
            and libraries.keys() & set(elf.needed)
        }:
            libraries |= more
        return libraries

    def _mpi(self, prefix: str, own: dict[str, str], abis: dict[str, MpiAbi], *, others: bool) -> HostMpi:
        libraries = tuple(sorted(own.values()))
        search: tuple[str, ...] = ()
        if prefix:
            directories = dict.fromkeys(path.rpartition("/")[0] for path in libraries)
            beside = (f"{prefix}/{name}" for name in _BESIDE)
            search = (*directories, *(path for path in beside if self.machine.exists(path)))
        versions = self._versions(prefix, set(abis.values()))
        remarks = []
        if len(versions) == 1:
            ((implementation, version),) = versions.items()
        elif versions:
            implementation, version = next(iter(versions)), None
            both = " and ".join(f"{name} {release}" for name, release in versions.items())
            remarks.append(f"Take care: programs of {both} are here, and its libraries are of one of them.")
        else:
            implementation, version = _by_path(libraries) or _by_abi(abis), None
            if not _by_path(libraries):
                remarks.append(
                    "Only its ABI is known, from its libraries: write who made it, and which version."
                )
        missing = dict.fromkeys(need for name in abis for need in self.missing(own[name], search))
        remarks += [
            f"{need.path} needs {need.name}, which is missing: add its directory to `search`."
            for need in missing
        ]
        if others:
            remarks.append(
                "Take care: another MPI is in the same place, and what else is there may be of either."
            )
        launcher: str | None = f"{prefix}/bin/mpiexec" if prefix else self.machine.program("mpiexec")
        if launcher and not self.machine.is_program(launcher):
            launcher = None
        if others and not self._is_launcher_of(launcher, set(abis.values())):
            launcher = None
        return HostMpi(
            prefix=prefix,
            implementation=implementation,
            version=version,
            libraries=libraries,
            abis=tuple(sorted(set(abis.values()))),
            search=search,
            launcher=launcher,
            remarks=tuple(remarks),
        )

    def _soname(self, path: str) -> str | None:
        elf = self.elf(path)
        return None if elf is None else elf.soname

    def _versions(self, prefix: str, abis: set[MpiAbi]) -> dict[str, str]:
        """Return what programs of an MPI of these ABIs say: implementation → version."""
        versions: dict[str, str] = {}
        for program, arguments, pattern, implementation in _TELLERS:
            path = f"{prefix}/bin/{program}" if prefix else self.machine.program(program)
            if path is None or not self.machine.is_program(path):
                continue
            match = re.search(pattern, self.machine.says(path, *arguments))
            if match and _fits(implementation, abis):
                versions.setdefault(implementation, match[1])
        return versions

    def _is_launcher_of(self, launcher: str | None, abis: set[MpiAbi]) -> bool:
        output = self.machine.says(launcher, "--version")
        return any(
            program == "mpiexec" and re.search(pattern, output) and _fits(implementation, abis)
            for program, _, pattern, implementation in _TELLERS
        )


# Program, its arguments, what it prints, and of which implementation it then is.
_TELLERS = (
    ("ompi_info", ("--version",), rf"Open MPI v?({VERSION})", "openmpi"),
    ("mpichversion", (), rf"MPICH Version:\s*({VERSION})", "mpich"),
    ("mpiexec", ("--version",), rf"Intel\(R\) MPI Library.*?Version ({VERSION})", "intel-mpi"),
    ("mpiexec", ("--version",), rf"\(Open MPI\) ({VERSION})", "openmpi"),
    ("mpiexec", ("--version",), rf"HYDRA build details:\s+Version:\s+({VERSION})", "mpich"),
)


def _families(abis: dict[str, MpiAbi]) -> list[frozenset[str]]:
    """Return the names of MPI libraries by whose they are, Open MPI's first.

    The standard's ABI may be of either: of MPICH's family, where that is there.
    """
    openmpi = frozenset(name for name, abi in abis.items() if abi.startswith("openmpi"))
    others = abis.keys() - openmpi
    if all(abis[name] == "standard" for name in others):
        return [frozenset(abis)] if abis else []
    return [one for one in (openmpi, frozenset(others)) if one]


def _by_path(libraries: Sequence[str]) -> str | None:
    """Return the implementation that the place of some libraries names."""
    vendors = {"/cray/": "cray-mpich", "mvapich": "mvapich2", "parastation": "parastation-mpi"}
    names = (name for part, name in vendors.items() if any(part in path for path in libraries))
    return next(names, None)


def _by_abi(abis: dict[str, MpiAbi]) -> str:
    return "openmpi" if any(abi.startswith("openmpi") for abi in abis.values()) else "mpich"


def _plain(path: str) -> str:
    """Return a path without `.`, `..` and `//`, as a site file names it; empty for the root."""
    return posixpath.normpath(f"/{path.lstrip('/')}").rstrip("/")


def _fits(name: str, abis: set[MpiAbi]) -> bool:
    """Whether libraries of these ABIs can be of an implementation."""
    return (name == "openmpi") == any(abi.startswith("openmpi") for abi in abis)
