"""Plan the host libraries that an image uses: the host's MPI, and those for its fabric.

They, and those that they need and the image lacks, are bound file by file into
one directory that the image's loader searches first. That directory is
`PRIVATE`; the host's side of it is a staging directory with an empty file for
each library. Nothing else of the host comes in but the companions that the
site names, each at its own place. The plan says what the files are as facts;
the rules judge whether they fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.elf.loader import Closure, Loaded, closure
from envbuild.elf.read import ElfObject
from envbuild.errors import RequestError
from envbuild.rules.facts import Fact, newest
from envbuild.rules.from_site import fabric_settings
from envbuild.site.files import HostTree, abi_of, host_search, libraries_below
from envbuild.spec.site import MpiAbi, Site, SiteFabric, SiteMpi
from envbuild.system.apptainer import Bind
from envbuild.system.files import exists, sha256

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
    """What of an image decides what it can take from a host."""

    abis: tuple[str, ...]
    """MPI ABIs that its programs and extensions need."""
    library_path: str
    """LD_LIBRARY_PATH as its own environment makes it."""
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a library that its loader finds → symbol versions that it defines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What a start of an image gets of its host."""

    implementation: str
    version: str
    """The host's MPI; an unknown version is empty."""
    abis: tuple[str, ...]
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
    facts: dict[str, Fact] = field(default_factory=dict)
    """What the host's files say, for the rules."""

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


def host_names(site: Site, *, mpi: bool, fabric: bool, tree: HostTree) -> tuple[str, ...]:
    """Return the names of all that a site's libraries would load, sorted: what to ask an image for.

    Raises
    ------
    RequestError
        The site names no MPI, or nothing of its fabric.
    """
    names: set[str] = set()
    for part in _parts(site, mpi=mpi, fabric=fabric):
        below = (path for companion in part.companions for path in libraries_below(companion))
        for path in (*part.libraries, *below):
            library = tree.lookup(path)
            if library is not None:
                loads = closure(path, tree, host_search(part.search, library.machine))
                names.update(name for loaded in loads.objects for name in loaded.found.needed)
    return tuple(sorted(names))


def plan_host_libraries(
    site: Site, image: ImageSide, *, mpi: bool = False, fabric: bool = False, tree: HostTree | None = None
) -> Injection:
    """Return what an image takes from a site.

    Its fabric's environment chooses the fabric and refuses any other: what follows from
    the provider, and the site's own on top. NCCL finds the plug-in by its name, in
    `PRIVATE`. If MPI and fabric both have a library or set a variable, the MPI's counts.

    Parameters
    ----------
    mpi, fabric : bool
        Whether it runs on the host's MPI, and whether it uses the host's libraries for its fabric.
    tree : HostTree, optional
        The host's files; this machine's own if absent.

    Raises
    ------
    RequestError
        The site names no MPI, or nothing of its fabric.
    """
    host = tree or HostTree()
    files = _HostFiles(image, host)
    facts: dict[str, Fact] = {}
    environment: dict[str, str] = {}
    own: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    for part in _parts(site, mpi=mpi, fabric=fabric):
        libraries = {path: library for path in part.libraries if (library := host.lookup(path)) is not None}
        files.absent += [path for path in part.libraries if path not in libraries]
        abis = {path: abi_of(path, library) for path, library in libraries.items()}
        if part.mpi is not None:
            facts |= _mpi_facts(libraries, abis)
            if not image.abis:
                facts["mpi.abis"] = Fact((), "image")
            # Another MPI's library beside the right one stays outside.
            libraries = {path: libraries[path] for path in _chosen(abis, image.abis)}
            own = tuple(sorted(Path(path).name for path in libraries if abis[path]))
        loads = files.add(libraries, part)
        facts |= _loaded_facts(part, loads)
        companions += part.companions
        environment = {**part.environment, **environment}
        devices += tuple(path for path in part.devices if exists(Path(path)))
    return Injection(
        implementation=site.mpi.implementation if mpi and site.mpi else "",
        version=(site.mpi.version or "") if mpi and site.mpi else "",
        abis=image.abis if mpi else (),
        mpi=own,
        files=dict(sorted(files.found.items())),
        # mpi4py, for one, opens the name that compilers use.
        links={_development(name): name for name in own if _development(name) != name},
        companions=companions,
        environment={**environment, "LD_LIBRARY_PATH": f"{PRIVATE}:{image.library_path}"},
        devices=devices,
        facts={**facts, **files.facts(site.name)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The host's MPI, or its fabric."""

    libraries: tuple[str, ...]
    search: tuple[str, ...]
    companions: tuple[str, ...] = ()
    environment: Mapping[str, str]
    devices: tuple[str, ...] = ()
    mpi: SiteMpi | None = None
    fabric: SiteFabric | None = None


def _parts(site: Site, *, mpi: bool, fabric: bool) -> Iterator[_Part]:
    if mpi:
        host = site.mpi
        if host is None or not host.libraries:
            what = "names no libraries of its host's MPI" if host else "says nothing of its host's MPI"
            raise RequestError(
                f"the site `{site.name}` {what}", hint="add `mpi:` with `libraries:` to its file"
            )
        yield _Part(
            libraries=host.libraries,
            search=host.search,
            companions=host.companions,
            environment=host.environment,
            mpi=host,
        )
    if fabric:
        own = site.fabric
        if own is None or not (own.libraries or own.nccl_plugin or fabric_settings(own)):
            raise RequestError(
                f"the site `{site.name}` has no libraries or settings of its fabric",
                hint="add `fabric:` with `provider:`, `libraries:`, `nccl_plugin:` or `environment:` to its"
                " file",
            )
        yield _Part(
            libraries=(*own.libraries, *([own.nccl_plugin] if own.nccl_plugin else [])),
            search=own.search,
            environment=fabric_settings(own),
            # A login node has none of them.
            devices=own.devices,
            fabric=own,
        )


def _mpi_facts(libraries: Mapping[str, ElfObject], abis: Mapping[str, MpiAbi | None]) -> dict[str, Fact]:
    sonames = {name for path, library in libraries.items() for name in (Path(path).name, library.soname)}
    return {
        "host_mpi.abis": Fact(tuple(sorted({abi for abi in abis.values() if abi})), "host"),
        "host_mpi.sonames": Fact(tuple(sorted(sonames - {""})), "host"),
    }


def _chosen(abis: Mapping[str, MpiAbi | None], needed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths that an image may use: the MPIs that it needs first, then what is no MPI."""
    return (
        *(path for path, abi in abis.items() if abi in needed),
        *(path for path, abi in abis.items() if abi is None),
    )


def _loaded_facts(part: _Part, loads: Mapping[str, Closure]) -> dict[str, Fact]:
    """Return whether Cray's transport library is loaded, and the CUDA of NCCL's plug-in."""
    facts = {}
    if part.mpi is not None:
        names = {name for loaded in loads.values() for each in loaded.objects[1:] for name in each.names}
        # Programs of the image may bring it as well: nothing here is no proof that nothing does.
        if any(name.startswith("libmpi_gtl_") for name in names):
            facts["mpi.gtl"] = Fact(True, "host")
    plugin = part.fabric.nccl_plugin if part.fabric else None
    if plugin is not None and plugin in loads:
        needed = loads[plugin].objects[0].found.needed
        majors = {match[1] for name in needed if (match := re.fullmatch(r"libcudart\.so\.([0-9]+).*", name))}
        facts["fabric.plugin_majors"] = Fact(tuple(sorted(majors)), f"host:{plugin}")
    return facts


class _HostFiles:
    """Collects what is bound: name → file of the host, and what stands against it."""

    def __init__(self, image: ImageSide, host: HostTree) -> None:
        self.found: dict[str, str] = {}
        self.absent: list[str] = []
        """Paths that the site names and that are not there."""
        self.unresolved: list[str] = []
        """Libraries and versions that nothing brings."""
        # Symbol versions of the image's C and C++ libraries that host libraries need → one that does.
        self._versions: dict[str, str] = {}
        self._image, self._host = image, host

    def add(self, libraries: Mapping[str, ElfObject], part: _Part) -> dict[str, Closure]:
        """Take libraries under their files' names and their sonames, and what they and companions need."""
        for path, library in libraries.items():
            for name in {Path(path).name, library.soname} - {""}:
                self.found.setdefault(name, path)
        loads = {
            path: closure(path, self._host, host_search(part.search, library.machine))
            for path, library in libraries.items()
        }
        for loaded in loads.values():
            self.unresolved += [f"{gap.name} (for {gap.path})" for gap in loaded.missing]
            self._take(loaded, part)
        for companion in part.companions:
            if not exists(Path(companion)):
                self.absent.append(companion)
            for path in libraries_below(companion):
                self._add_opened(path, part)
        return loads

    def _add_opened(self, path: str, part: _Part) -> None:
        """Take what a library needs that is opened by itself, if the host has all of it."""
        library = self._host.lookup(path)
        if library is None:
            return
        loads = closure(path, self._host, host_search(part.search, library.machine))
        # The host cannot load it either: a provider of hardware that is not here.
        if not loads.missing:
            self._take(loads, part)

    def _take(self, loads: Closure, part: _Part) -> None:
        self._note_versions(loads.objects[0])
        waiting, seen = [loads.objects[0]], {id(loads.objects[0])}
        for asking in waiting:
            for name, needed in sorted(asking.needs.items()):
                if _NEVER.fullmatch(name) or id(needed) in seen:
                    continue
                seen.add(id(needed))
                if self._has_own(name, needed, loads) or self._bound_already(needed, part):
                    continue
                self.found.setdefault(name, needed.path)
                self._note_versions(needed)
                waiting.append(needed)

    def _has_own(self, name: str, needed: Loaded, loads: Closure) -> bool:
        """Whether a library of the host's distribution is in the image, with all versions that are needed."""
        if not _SYSTEM.fullmatch(needed.path) or name not in self._image.provides:
            return False
        asked = {version for each in loads.objects for version in each.found.versions_needed.get(name, ())}
        return asked <= set(self._image.provides[name])

    def _bound_already(self, needed: Loaded, part: _Part) -> bool:
        """Whether it lies in a companion, and what asks for it finds it there by itself."""
        places = tuple(f"{path}/" for path in part.companions)
        parent = needed.parent
        by_itself = needed.rule in ("DT_RPATH", "DT_RUNPATH", "path")
        if not by_itself or parent is None or parent.path in self.found.values():
            return False
        return needed.path.startswith(places) and parent.path.startswith(places)

    def _note_versions(self, loaded: Loaded) -> None:
        for name, versions in sorted(loaded.found.versions_needed.items()):
            if _NEVER.fullmatch(name) is None:
                continue
            provided = self._image.provides.get(name)
            for version in versions:
                if version.startswith(("GLIBC_", "GLIBCXX_")):
                    self._versions.setdefault(version, loaded.path)
                elif provided is not None and version not in provided:
                    self.unresolved.append(f"{version} of {name} (for {loaded.path})")

    def facts(self, site: str) -> dict[str, Fact]:
        """Return what stands against these files, and the newest versions that they need."""
        facts = {
            "injected.absent": Fact(tuple(dict.fromkeys(self.absent)), f"site:{site}"),
            "injected.unresolved": Fact(tuple(dict.fromkeys(self.unresolved)), "host"),
        }
        for library, kind in (("glibc", "GLIBC"), ("libstdcxx", "GLIBCXX")):
            version = newest(self._versions, kind)
            source = f"host:{self._versions[f'{kind}_{version}']}" if version else "host"
            facts[f"{library}.injected"] = Fact(version or "", source)
        provided = newest(self._image.provides.get("libstdc++.so.6", ()), "GLIBCXX")
        return facts | ({"libstdcxx.image": Fact(provided, "image")} if provided else {})


def _development(name: str) -> str:
    return name.partition(".so")[0] + ".so"
