"""What an image takes from its host to run on the host's MPI, planned before anything starts.

The host's libraries, and those that they need and the image lacks, are bound
file by file into one directory that the image's loader searches first. That
directory is `PRIVATE`; the host's side of it is a staging directory with an
empty file a library, whose place each library takes. Nothing else of the host
comes in but the companions that the site names, each at its own place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.elf.loader import Closure, Loaded, closure
from envbuild.elf.read import ElfObject
from envbuild.errors import RequestError
from envbuild.site.files import HostTree, abi_of, host_search, libraries_below
from envbuild.spec.site import MpiAbi, Site, SiteMpi
from envbuild.system.apptainer import Bind
from envbuild.system.files import sha256

# Every base has it, empty, and no centre binds anything there: no overlay is needed to make it.
MOUNT = "/media"
PRIVATE = f"{MOUNT}/envbuild"

# They belong to the image's own loader, or a process would hold two C or C++ libraries.
_NEVER = re.compile(
    r"(ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|nsl|nss_.*|anl|BrokenLocale|thread_db)|libgcc_s|libstdc\+\+)\.so\.[0-9]+"
)
_SYSTEM = re.compile(r"(/usr)?/lib(64|/[a-z0-9_]+-linux-gnu)?/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSide:
    """What of an image decides what it can take from a host.

    Attributes
    ----------
    label : str
        For messages.
    family : str
        Whose launcher its MPI has (``mpich``, ``openmpi``, ``intel-mpi``).
    abis : tuple of str
        Those that its programs and extensions ask for.
    glibc : str
        Its C library's version.
    library_path : str
        LD_LIBRARY_PATH as its own environment makes it.
    provides : mapping of str to tuple of str
        Name of a library that its loader finds → symbol versions that it defines.
    bound_hard : tuple of str
        Files whose DT_RPATH leads to the image's MPI.
    """

    label: str
    family: str
    abis: tuple[MpiAbi, ...]
    glibc: str
    library_path: str
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bound_hard: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What a start of an image gets of its host.

    Attributes
    ----------
    implementation, version : str
        The host's MPI; an unknown version is empty.
    abis : tuple of str
        By which the image's programs meet it.
    mpi : tuple of str
        Names of the MPI libraries themselves among `files`, sorted.
    files : dict of str to str
        Name in `PRIVATE` → file of the host, sorted by name.
    links : dict of str to str
        Further names in `PRIVATE` (``libmpi.so``) → names of `files`.
    companions : tuple of str
        Bound where they are.
    environment : dict of str to str
        Set in the image, LD_LIBRARY_PATH among them.
    """

    implementation: str
    version: str
    abis: tuple[MpiAbi, ...]
    mpi: tuple[str, ...]
    files: dict[str, str]
    links: dict[str, str]
    companions: tuple[str, ...]
    environment: dict[str, str]

    @property
    def identity(self) -> str:
        """Which MPI of the host it is: implementation, version, first digits of its files' digests."""
        digests = (sha256(Path(self.files[name]))[:12] for name in self.mpi)
        return " ".join([self.implementation, *([self.version] if self.version else []), *digests])

    def binds(self, stage: Path) -> tuple[Bind, ...]:
        """Return the binds of a start, in their order.

        Parameters
        ----------
        stage : Path
            What `fill_stage` has filled.
        """
        directory = Bind(source=stage, target=MOUNT)
        below = PRIVATE.removeprefix(MOUNT)
        files = (Bind(source=path, target=f"{MOUNT}{below}/{name}") for name, path in self.files.items())
        return (directory, *files, *(Bind(source=path, target=path) for path in self.companions))

    def fill_stage(self, stage: Path) -> None:
        """Make the staging directory's content: an empty file for each library, and the links.

        Doing it again changes nothing.

        Raises
        ------
        OSError
            It cannot be written.
        """
        directory = stage / PRIVATE.removeprefix(f"{MOUNT}/")
        directory.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            (directory / name).touch()
        for name, target in self.links.items():
            link = directory / name
            if not link.is_symlink():
                link.symlink_to(target)


def lent_names(site: Site, *, tree: HostTree | None = None) -> tuple[str, ...]:
    """Return the names of what a site's MPI would load, sorted: what to ask an image for.

    Raises
    ------
    RequestError
        The site names no MPI, or a library of it is not there.
    """
    mpi = _mpi_of(site)
    host = tree or HostTree()
    names: set[str] = set()
    opened = (
        path for companion in mpi.companions for path in libraries_below(companion) if host.lookup(path)
    )
    for path in (*mpi.libraries, *opened):
        loads = closure(path, host, host_search(mpi.search, _named(host, path).machine))
        names.update(name for each in loads.objects for name in each.found.needed)
    return tuple(sorted(names))


def plan_mpi(site: Site, image: ImageSide, *, tree: HostTree | None = None) -> Injection:
    """Return what an image takes from a site to run on the host's MPI.

    Parameters
    ----------
    tree : HostTree, optional
        The host's files; this machine's own if absent.

    Raises
    ------
    RequestError
        The rules forbid it, a file is missing, or the site names no MPI.
    """
    mpi = _mpi_of(site)
    host = tree or HostTree()
    named = {path: _named(host, path) for path in mpi.libraries}
    abis = {path: abi_of(path, found) for path, found in named.items()}
    chosen = _chosen(site.name, mpi, image, named, abis)
    if image.bound_hard:
        raise RequestError(
            f"MPI.rpath-defeats-swap: {image.bound_hard[0]} in `{image.label}` finds the image's own MPI "
            "through DT_RPATH, which the loader reads first",
            hint="build it again without that RPATH (RUNPATH does no harm), or run on the image's MPI",
        )
    files = _Files(image, host, mpi, named[chosen[0]].machine)
    for path in chosen:
        files.add_named(path, named[path])
    for companion in mpi.companions:
        if not Path(companion).exists():
            raise _missing(f"the companion {companion} of the host's MPI is not there")
        for path in libraries_below(companion):
            files.add_needs(path)
    own = tuple(sorted(Path(path).name for path in chosen if abis[path]))
    return Injection(
        implementation=mpi.implementation,
        version=mpi.version or "",
        abis=image.abis,
        mpi=own,
        files=dict(sorted(files.found.items())),
        # mpi4py, for one, opens the name that compilers use.
        links={_development(name): name for name in own if _development(name) != name},
        companions=mpi.companions,
        environment={**mpi.environment, "LD_LIBRARY_PATH": f"{PRIVATE}:{image.library_path}"},
    )


def _mpi_of(site: Site) -> SiteMpi:
    if site.mpi is None or not site.mpi.libraries:
        what = "names no libraries of its host's MPI" if site.mpi else "says nothing of its host's MPI"
        raise RequestError(f"the site `{site.name}` {what}", hint="add `mpi:` with `libraries:` to its file")
    return site.mpi


def _named(host: HostTree, path: str) -> ElfObject:
    found = host.lookup(path)
    if found is None:
        raise _missing(f"{path}, which the site names, is not there or is no library")
    return found


def _missing(what: str) -> RequestError:
    return RequestError(
        f"MPI.companion-libraries: {what}",
        hint="the host has changed since its site file was written: mend the file",
    )


def _chosen(
    site: str,
    mpi: SiteMpi,
    image: ImageSide,
    named: Mapping[str, ElfObject],
    abis: Mapping[str, MpiAbi | None],
) -> tuple[str, ...]:
    """Return the host's libraries that the image may use, MPI first, or refuse."""
    if not image.abis:
        raise RequestError(
            f"MPI.abi-family: nothing in `{image.label}` asks for an MPI library of a known ABI",
            hint="run on the image's own MPI",
        )
    offered = {abi for abi in abis.values() if abi}
    for wanted in image.abis:
        if wanted in offered:
            continue
        clash = next(
            (path for path, abi in abis.items() if abi and _same_name(named[path].soname, wanted)), None
        )
        if clash is not None:
            raise RequestError(
                f"MPI.openmpi-1.10-is-not-mpich: `{image.label}` needs libmpi.so.12 of "
                f"{_WORDS[wanted]}, and {clash} is that of {_WORDS[abis[clash] or wanted]}: "
                "the same name, and another ABI by its symbols",
                hint="run on the image's own MPI, or name the host's other MPI in the site file",
            )
        told = ", ".join(_WORDS[abi] for abi in sorted(offered)) or "none that is known"
        raise RequestError(
            f"MPI.abi-family: `{image.label}` needs {_WORDS[wanted]}, and {mpi.implementation} of the site "
            f"`{site}` offers {told}",
            hint="run on the image's own MPI, or build the image with an MPI of the host's family",
        )
    mpis = [path for path, abi in abis.items() if abi in image.abis]
    return (*mpis, *(path for path, abi in abis.items() if abi is None))


_WORDS: Mapping[MpiAbi, str] = {
    "standard": "the MPI standard's ABI (libmpi_abi.so.1)",
    "mpich": "the MPICH ABI (libmpi.so.12)",
    "openmpi-12": "Open MPI 1.10 (libmpi.so.12)",
    "openmpi-20": "Open MPI 2 (libmpi.so.20)",
    "openmpi-40": "Open MPI 3 to 5 (libmpi.so.40)",
}


def _same_name(soname: str, wanted: MpiAbi) -> bool:
    return soname == "libmpi.so.12" and wanted in ("mpich", "openmpi-12")


def _development(name: str) -> str:
    return name.partition(".so")[0] + ".so"


class _Files:
    """Gathers what is bound: name → file of the host."""

    def __init__(self, image: ImageSide, host: HostTree, mpi: SiteMpi, machine: str) -> None:
        self.found: dict[str, str] = {}
        self._image, self._host, self._mpi = image, host, mpi
        self._search = host_search(mpi.search, machine)

    def add_named(self, path: str, found: ElfObject) -> None:
        """Take a library that the site names, under its file's name and its soname, and what it needs."""
        for name in {Path(path).name, found.soname} - {""}:
            self.found[name] = path
        loads = closure(path, self._host, self._search)
        if loads.missing:
            first = loads.missing[0]
            raise _missing(f"{first.path} needs {first.name}, which is nowhere on this host")
        self._take(loads)

    def add_needs(self, path: str) -> None:
        """Take what a library needs that is opened by itself, where the host has all of it."""
        if self._host.lookup(path) is None:
            return
        loads = closure(path, self._host, self._search)
        # The host cannot load it either: a provider of hardware that is not here.
        if not loads.missing:
            self._take(loads)

    def _take(self, loads: Closure) -> None:
        self._check_versions(loads.objects[0])
        waiting, seen = [loads.objects[0]], {id(loads.objects[0])}
        for asking in waiting:
            for name, needed in sorted(asking.needs.items()):
                if _NEVER.fullmatch(name) or id(needed) in seen:
                    continue
                seen.add(id(needed))
                if self._has_own(name, needed, loads) or self._bound_already(needed):
                    continue
                self.found.setdefault(name, needed.path)
                self._check_versions(needed)
                waiting.append(needed)

    def _has_own(self, name: str, needed: Loaded, loads: Closure) -> bool:
        """Whether a library of the host's distribution is in the image, with all versions that are asked."""
        if not _SYSTEM.fullmatch(needed.path) or name not in self._image.provides:
            return False
        asked = {version for each in loads.objects for version in each.found.versions_needed.get(name, ())}
        return asked <= set(self._image.provides[name])

    def _bound_already(self, needed: Loaded) -> bool:
        """Whether it lies in a companion, and what asks for it finds it there by itself."""
        inside = any(needed.path.startswith(f"{path}/") for path in self._mpi.companions)
        by_itself = needed.rule in ("DT_RPATH", "DT_RUNPATH", "path")
        return inside and by_itself and needed.parent is not None and self._in_companion(needed.parent.path)

    def _in_companion(self, path: str) -> bool:
        return path not in self.found.values() and any(
            path.startswith(f"{companion}/") for companion in self._mpi.companions
        )

    def _check_versions(self, loaded: Loaded) -> None:
        for name, versions in sorted(loaded.found.versions_needed.items()):
            if _NEVER.fullmatch(name) is None:
                continue
            for version in _too_new(name, versions, self._image):
                kind = version.partition("_")[0]
                raise RequestError(
                    f"{kind}.host-library-ceiling: {loaded.path} of the host needs {version} of {name}, and "
                    f"`{self._image.label}` has {self._has(kind)}",
                    hint="run on the image's own MPI, or build the image on a newer base",
                )

    def _has(self, kind: str) -> str:
        return f"glibc {self._image.glibc}" if kind == "GLIBC" else "an older one"


def _too_new(name: str, versions: tuple[str, ...], image: ImageSide) -> Iterator[str]:
    has = _numbers(image.glibc)
    for version in sorted(versions, key=_numbers):
        if version.startswith("GLIBC_"):
            numbers = _numbers(version)
            if numbers and numbers > has:
                yield version
        elif name in image.provides and version not in image.provides[name]:
            yield version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"[0-9]+", version))
