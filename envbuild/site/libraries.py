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
class FoundMpi:
    """An MPI on this machine.

    Attributes
    ----------
    prefix : str
        Where it is installed; empty for one of the loader's cache.
    implementation : str
        ``openmpi``, ``mpich``, ``intel-mpi``, …
    is_named : bool
        Whether something said so; otherwise its ABI alone did.
    version, base_version : str or None
        Its own, and that of what it is made from.
    libraries : tuple of str
        Paths under the sonames that programs ask by, sorted.
    abis : tuple of str
        Those of its libraries, by their symbols, sorted.
    search : tuple of str
        Directories of what they need.
    launcher : str or None
        Its mpiexec.
    missing : tuple of Missing
        What its libraries need and nothing has.
    doubts : tuple of str
        Sentences on what may be another's: several MPIs may be installed in one place.
    """

    prefix: str
    implementation: str
    is_named: bool
    version: str | None
    base_version: str | None
    libraries: tuple[str, ...]
    abis: tuple[MpiAbi, ...]
    search: tuple[str, ...]
    launcher: str | None
    missing: tuple[Missing, ...]
    doubts: tuple[str, ...] = ()


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

    def mpis(self, named: Sequence[str] = ()) -> tuple[FoundMpi, ...]:
        """Return the MPIs of this machine, the likeliest first, each once.

        Parameters
        ----------
        named : sequence of str
            Directories where one is installed, before those that the
            environment, PATH and the loader's cache lead to.
        """
        found: dict[tuple[str, ...], FoundMpi] = {}
        for prefix in dict.fromkeys(self._prefixes(named)):
            for mpi in self._at(prefix):
                found.setdefault(tuple(map(self.machine.real, mpi.libraries)), mpi)
        for cached in self._described("", self._of_cache()):
            found.setdefault(tuple(map(self.machine.real, cached.libraries)), cached)
        return tuple(found.values())

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

    def _at(self, prefix: str) -> tuple[FoundMpi, ...]:
        paths: dict[str, str] = {}
        # The system's directories are the loader's, and so in its cache.
        for below in _BELOW_PREFIX if prefix not in ("", "/usr") else ():
            directory = f"{prefix}/{below}"
            for name in self.machine.names(directory):
                if _LIBRARY.fullmatch(name):
                    paths.setdefault(name, f"{directory}/{name}")
        return self._described(prefix, paths)

    def _of_cache(self) -> dict[str, str]:
        return {name: path for name, path in self.cached().items() if _LIBRARY.fullmatch(name)}

    def _described(self, prefix: str, paths: dict[str, str]) -> tuple[FoundMpi, ...]:
        """Keep what asks to be called so; one MPI for each family, whose mpiexec is there first."""
        own = {name: path for name, path in sorted(paths.items()) if self._is_called(path, name)}
        abis = {name: abi for name, path in own.items() if (abi := self.abi(path)) is not None}
        families = _families(abis)
        # Of a place with one MPI everything is that one's, whatever it needs.
        parts = [self._part(own, names) for names in families] if len(families) > 1 else [own] * len(families)
        found = [self._one(prefix, part, abis, alone=len(parts) == 1) for part in parts]
        return tuple(sorted(found, key=lambda mpi: mpi.launcher is None))

    def _part(self, own: dict[str, str], names: frozenset[str]) -> dict[str, str]:
        """Return the libraries of one MPI of several: those named, and all that need one of them."""
        found = {name: own[name] for name in own if name in names}
        while more := {
            name: path
            for name, path in own.items()
            if name not in found and (elf := self.elf(path)) is not None and found.keys() & set(elf.needed)
        }:
            found |= more
        return found

    def _one(self, prefix: str, own: dict[str, str], all_abis: dict[str, MpiAbi], *, alone: bool) -> FoundMpi:
        abis = {name: abi for name, abi in all_abis.items() if name in own}
        libraries = tuple(sorted(own.values()))
        directories = dict.fromkeys(path.rpartition("/")[0] for path in libraries)
        beside = (f"{prefix}/{one}" for one in _BESIDE if prefix and self.machine.exists(f"{prefix}/{one}"))
        search = () if not prefix else (*directories, *beside)
        name, version, is_named, doubts = self._told_by_programs(prefix, libraries, set(abis.values()))
        if not alone:
            others = ", ".join(sorted(set(all_abis) - set(abis)))
            doubts = (
                *doubts,
                f"another MPI is in the same place ({others}): what else lies there may be of either",
            )
        base = version if name in ("mpich", "openmpi") else None
        launcher = f"{prefix}/bin/mpiexec"
        if not prefix:
            launcher = self.machine.program("mpiexec") or ""
        if not alone and not self._starts(launcher, set(abis.values())):
            launcher = ""
        return FoundMpi(
            prefix=prefix,
            implementation=name,
            is_named=is_named,
            version=version,
            base_version=base,
            libraries=libraries,
            abis=tuple(sorted(set(abis.values()))),
            search=search,
            launcher=launcher if launcher and self.machine.is_program(launcher) else None,
            missing=self._all_missing([own[one] for one in abis], search),
            doubts=doubts,
        )

    def _starts(self, launcher: str, abis: set[MpiAbi]) -> bool:
        """Whether an mpiexec says that it is of an MPI of these ABIs."""
        said = self.machine.says(launcher or None, "--version")
        tellers = [(pattern, name) for program, _, pattern, name in _TELLERS if program == "mpiexec"]
        return any(re.search(pattern, said) and _fits(name, abis) for pattern, name in tellers)

    def _is_called(self, path: str, name: str) -> bool:
        found = self.elf(path)
        return found is not None and found.soname == name

    def _all_missing(self, paths: Sequence[str], search: Sequence[str]) -> tuple[Missing, ...]:
        found = (one for path in paths for one in self.missing(path, search))
        return tuple(dict.fromkeys(found))

    def _told_by_programs(
        self, prefix: str, libraries: tuple[str, ...], abis: set[MpiAbi]
    ) -> tuple[str, str | None, bool, tuple[str, ...]]:
        """Return an MPI's name, its version, whether more than its ABI said so, and what to doubt of it."""
        told: dict[str, str] = {}
        for program, arguments, pattern, name in _TELLERS:
            path = f"{prefix}/bin/{program}" if prefix else self.machine.program(program)
            if path is None or not self.machine.is_program(path):
                continue
            said = re.search(pattern, self.machine.says(path, *arguments))
            if said and _fits(name, abis):
                told.setdefault(name, said[1])
        if len(told) == 1:
            ((name, version),) = told.items()
            return name, version, True, ()
        if told:
            both = " and ".join(f"{name} {version}" for name, version in told.items())
            doubt = f"programs of {both} are in the same place, and its libraries are of one of them"
            return next(iter(told)), None, False, (doubt,)
        for part, name in (
            ("/cray/", "cray-mpich"),
            ("mvapich", "mvapich2"),
            ("parastation", "parastation-mpi"),
        ):
            if any(part in path for path in libraries):
                return name, None, True, ()
        family = "openmpi" if any(abi.startswith("openmpi") for abi in abis) else "mpich"
        return family, None, False, ()


# Program, its arguments, what it says, and whose it then is; the first that tells it knows the version.
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


def _plain(path: str) -> str:
    """Return a path without `.`, `..` and `//`, as a site file names it; empty for the root."""
    return posixpath.normpath(f"/{path.lstrip('/')}").rstrip("/")


def _fits(name: str, abis: set[MpiAbi]) -> bool:
    """Whether libraries of these ABIs can be of an implementation."""
    return (name == "openmpi") == any(abi.startswith("openmpi") for abi in abis)
