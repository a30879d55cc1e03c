"""What an image takes from its host to run on the host's MPI, planned before anything starts.

The host's libraries, and those that they need and the image lacks, are bound
file by file into one directory that the image's loader searches first. That
directory is `PRIVATE`; the host's side of it is a staging directory with an
empty file a library, whose place each library takes. Nothing else of the host
comes in but the companions that the site names, each at its own place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.compat.facts import Facts, make_facts
from envbuild.elf.loader import closure
from envbuild.elf.read import ElfObject
from envbuild.errors import RequestError
from envbuild.site.files import HostTree, abi_of, host_search, libraries_below
from envbuild.site.lent import ImageSide, LentFiles, missing, named
from envbuild.spec.site import MpiAbi, Site, SiteMpi
from envbuild.system.apptainer import Bind
from envbuild.system.files import exists, sha256

# Every base has it, empty, and no centre binds anything there: no overlay is needed to make it.
MOUNT = "/media"
PRIVATE = f"{MOUNT}/envbuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What a start of an image gets of its host."""

    implementation: str
    version: str
    """The host's MPI; an unknown version is empty."""
    abis: tuple[MpiAbi, ...]
    """By which the image's programs meet it."""
    mpi: tuple[str, ...]
    """Names of the MPI libraries themselves among `files`, sorted."""
    files: dict[str, str]
    """Name in `PRIVATE` → file of the host, sorted by name."""
    links: dict[str, str]
    """Further names in `PRIVATE` (``libmpi.so``) → names of `files`."""
    companions: tuple[str, ...]
    """Bound where they are."""
    environment: dict[str, str]
    """Set in the image, LD_LIBRARY_PATH among them."""
    devices: tuple[str, ...] = ()
    """Device files, bound where they are; those that this node has."""

    @property
    def identities(self) -> dict[str, str]:
        """What of the host it is, for verdicts: ``mpi`` → its name, version and files' digests.

        Without an MPI ``lent`` → the digests of what is lent instead.
        """
        known = {}
        if self.mpi:
            words = [self.implementation, *([self.version] if self.version else [])]
            known["mpi"] = " ".join([*words, *self._digests(self.mpi)])
        others = [name for name in self.files if name not in self.mpi]
        if others and not self.mpi:
            known["lent"] = " ".join(self._digests(others))
        return known

    @property
    def by_name(self) -> dict[str, Path]:
        """Every name in `PRIVATE` → the file of the host that it leads to."""
        files = {name: Path(path) for name, path in self.files.items()}
        return {**files, **{name: files[target] for name, target in self.links.items()}}

    def _digests(self, names: Iterable[str]) -> list[str]:
        return [sha256(Path(self.files[name]))[:12] for name in names]

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
        companions = (Bind(source=path, target=path) for path in self.companions)
        devices = (Bind(source=path, target=path, writable=True) for path in self.devices)
        return (directory, *files, *companions, *devices)

    def joined(self, other: Injection) -> Injection:
        """Return what gives both; where both lend a name, this one's file wins."""
        return replace(
            self,
            files=dict(sorted({**other.files, **self.files}.items())),
            links={**other.links, **self.links},
            companions=tuple(dict.fromkeys((*self.companions, *other.companions))),
            environment={**other.environment, **self.environment},
            devices=tuple(dict.fromkeys((*self.devices, *other.devices))),
        )

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
        loads = closure(path, host, host_search(mpi.search, named(host, path).machine))
        names.update(name for each in loads.objects for name in each.found.needed)
    return tuple(sorted(names))


def read_host_mpi(site: Site, *, tree: HostTree | None = None) -> Facts:
    """Return what the libraries of a site's MPI tell of themselves: their ABIs, and under which names.

    Raises
    ------
    RequestError
        As `lent_names`.
    """
    host = tree or HostTree()
    libraries = {path: named(host, path) for path in _mpi_of(site).libraries}
    abis = {abi for path, found in libraries.items() if (abi := abi_of(path, found))}
    names = {name for path, found in libraries.items() for name in (Path(path).name, found.soname) if name}
    values = {"host_mpi.abis": tuple(sorted(abis)), "host_mpi.sonames": tuple(sorted(names))}
    return make_facts(values, dict.fromkeys(values, "host"))


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
    libraries = {path: named(host, path) for path in mpi.libraries}
    abis = {path: abi_of(path, found) for path, found in libraries.items()}
    chosen = _chosen(site.name, mpi, image, libraries, abis)
    if image.bound_hard:
        raise RequestError(
            f"MPI.rpath-defeats-swap: {image.bound_hard[0]} in `{image.label}` finds the image's own MPI "
            "through DT_RPATH, which the loader reads first",
            hint="build it again without that RPATH (RUNPATH does no harm), or run on the image's MPI",
        )
    files = LentFiles(
        image,
        host,
        search=mpi.search,
        companions=mpi.companions,
        machine=libraries[chosen[0]].machine,
    )
    for path in chosen:
        files.add_named(path, libraries[path])
    for companion in mpi.companions:
        if not exists(Path(companion)):
            raise missing(f"the companion {companion} of the host's MPI is not there")
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


def _chosen(
    site: str,
    mpi: SiteMpi,
    image: ImageSide,
    libraries: Mapping[str, ElfObject],
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
            (path for path, abi in abis.items() if abi and _same_name(libraries[path].soname, wanted)), None
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
