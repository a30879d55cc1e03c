"""Plan the host libraries that an image uses: the host's MPI, and those of its fabric.

They, and the libraries that they need and the image lacks, are bound file by file into `HOST_LIB_DIR`, which
the image's loader searches first. On the host that directory is a staging directory with an empty file for
each library. Nothing else of the host is bound but the companions and devices that the site file names, each
at its own path. A plan holds the facts of the host's files; the rules judge whether they fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.elf.loader import Closure, Loaded
from envbuild.errors import RequestError
from envbuild.jobs.envbuild_libraries import GPU_TRANSPORT, major_of
from envbuild.rules.facts import Fact, newest
from envbuild.rules.from_site import fabric_settings
from envbuild.site.libraries import HostTree, libraries_below
from envbuild.spec.site import Site, SiteFabric, SiteMpi
from envbuild.system.apptainer import Bind
from envbuild.system.files import exists, sha256

# Every base has this empty directory, so no overlay is needed, and no centre binds anything there.
BIND_ROOT = "/media"
HOST_LIB_DIR = f"{BIND_ROOT}/envbuild"
# Always the image's own, or a process would load two C or C++ libraries.
_NEVER = re.compile(
    r"(ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|nsl|nss_.*|anl|BrokenLocale|thread_db)|libgcc_s|libstdc\+\+)\.so\.[0-9]+"
)
_SYSTEM = re.compile(r"(/usr)?/lib(64|/[a-z0-9_]+-linux-gnu)?/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLibraries:
    """The facts of an image that decide which libraries of a host it can use."""

    abis: tuple[str, ...]
    """MPI ABIs that its programs and extensions need."""
    library_path: str
    """LD_LIBRARY_PATH in the image's own environment."""
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Library that its loader finds → symbol versions that the library defines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLibraryPlan:
    """The parts of the host that a start of an image uses."""

    mpi: SiteMpi | None = None
    """The host's MPI, if the image runs on it."""
    abis: tuple[str, ...] = ()
    """ABIs by which the image's programs use that MPI."""
    mpi_files: tuple[str, ...] = ()
    """Names of the MPI libraries themselves among `files`, sorted."""
    files: dict[str, str]
    """Name in `HOST_LIB_DIR` → file of the host, sorted by name."""
    devices: tuple[str, ...] = ()
    """Device files of this node, bound at their own paths."""
    environment: dict[str, str]
    """Variables of the image, including LD_LIBRARY_PATH."""
    facts: dict[str, Fact] = field(default_factory=dict)
    """Facts of the host's files, for the rules."""
    errors: tuple[RequestError, ...] = ()
    """Information that the site file lacks."""

    @property
    def links(self) -> dict[str, str]:
        """Names that compilers use (``libmpi.so``) → names of `files`; mpi4py opens them."""
        names = {f"{name.partition('.so')[0]}.so": name for name in self.mpi_files}
        return {link: name for link, name in names.items() if link != name}

    @property
    def companions(self) -> tuple[str, ...]:
        """Paths that the host's MPI opens by itself, bound at the same path."""
        return self.mpi.companions if self.mpi else ()

    @property
    def by_name(self) -> dict[str, Path]:
        """Every name in `HOST_LIB_DIR` → file of the host."""
        files = {name: Path(path) for name, path in self.files.items()}
        return files | {link: files[name] for link, name in self.links.items()}

    @property
    def identities(self) -> dict[str, str]:
        """Facts of the host for verdicts: ``mpi`` → name, version and digests, or ``lent`` → digests."""
        digests = [sha256(Path(self.files[name]))[:12] for name in self.mpi_files or self.files]
        if self.mpi is not None and self.mpi_files:
            version = [self.mpi.version] if self.mpi.version else []
            return {"mpi": " ".join([self.mpi.implementation, *version, *digests])}
        return {"lent": " ".join(digests)} if digests else {}

    def binds(self, stage: Path) -> tuple[Bind, ...]:
        """Return the binds of a start, in order; `fill_stage` has filled the directory `stage`."""
        return (
            Bind(source=stage, target=BIND_ROOT),
            *(Bind(source=path, target=f"{HOST_LIB_DIR}/{name}") for name, path in self.files.items()),
            *(Bind(source=path, target=path) for path in self.companions),
            *(Bind(source=path, target=path, writable=True) for path in self.devices),
        )

    def fill_stage(self, stage: Path) -> None:
        """Fill the staging directory: an empty file for each library, and the links; idempotent."""
        directory = stage / HOST_LIB_DIR.removeprefix(f"{BIND_ROOT}/")
        directory.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            (directory / name).touch()
        for name, target in self.links.items():
            link = directory / name
            if not link.is_symlink():
                link.symlink_to(target)


def plan_host_libraries(
    site: Site,
    image: ImageLibraries,
    *,
    mpi: bool = False,
    fabric: bool = False,
) -> HostLibraryPlan:
    """Return the libraries that an image takes from a site: those of its MPI, of its fabric, or both.

    A fabric's variables select it and exclude any other: they follow from its provider, and the site's own
    are added. NCCL finds its plug-in by name in `HOST_LIB_DIR`. If MPI and fabric both have a library or set
    a variable, the MPI's counts.
    """
    host_mpi, host_fabric = site.mpi if mpi else None, site.fabric if fabric else None
    collector = _Collector(image)
    # Without libraries, the facts come from the site file alone.
    mpi_files = _add_mpi(host_mpi, image, collector) if host_mpi and host_mpi.libraries else ()
    if host_fabric:
        _add_fabric(host_fabric, collector)
    devices = host_fabric.devices if host_fabric else ()
    return HostLibraryPlan(
        mpi=host_mpi,
        abis=image.abis if mpi else (),
        mpi_files=mpi_files,
        files=dict(sorted(collector.files.items())),
        # A login node has no such devices.
        devices=tuple(path for path in devices if exists(Path(path))),
        environment={
            **(fabric_settings(host_fabric) if host_fabric else {}),
            **(host_mpi.environment if host_mpi else {}),
            "LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:{image.library_path}",
        },
        facts=collector.all_facts(site.name),
        errors=tuple(_unspecified(site, mpi=mpi, fabric=fabric)),
    )


def _unspecified(site: Site, *, mpi: bool, fabric: bool) -> Iterable[RequestError]:
    if mpi and not (site.mpi and site.mpi.libraries):
        problem = "names no libraries of its host's MPI" if site.mpi else "says nothing of its host's MPI"
        hint = "add `mpi:` with `libraries:` to its file"
        yield RequestError(f"the site `{site.name}` {problem}", hint=hint)
    own = site.fabric
    if fabric and not (own and (own.libraries or own.nccl_plugin or fabric_settings(own))):
        keys = "`provider:`, `libraries:`, `nccl_plugin:` or `environment:`"
        hint = f"add `fabric:` with {keys} to its file"
        yield RequestError(f"the site `{site.name}` has no libraries or settings of its fabric", hint=hint)


def _add_mpi(mpi: SiteMpi, image: ImageLibraries, collector: _Collector) -> tuple[str, ...]:
    """Add a host's MPI; return the names of its MPI libraries, sorted."""
    loads = collector.load(mpi.libraries, mpi.search)
    abis = {path: collector.tree.abi(path) for path in loads}
    sonames = {name for path, closure in loads.items() for name in _names(path, closure)}
    collector.facts["host_mpi.abis"] = Fact(tuple(sorted({abi for abi in abis.values() if abi})), "host")
    collector.facts["host_mpi.sonames"] = Fact(tuple(sorted(sonames)), "host")
    if not image.abis:
        collector.facts["mpi.abis"] = Fact((), "image")
    # Not an MPI with another ABI beside the right one; the right one comes before its helpers.
    own = [path for path, abi in abis.items() if abi in image.abis]
    chosen = {path: loads[path] for path in (*own, *(path for path, abi in abis.items() if abi is None))}
    collector.add(chosen, mpi.companions)
    collector.add_companions(mpi.companions, mpi.search)
    names = {name for closure in chosen.values() for loaded in closure.objects[1:] for name in loaded.names}
    # The image's programs may load it as well, so its absence here proves nothing.
    if any(name.startswith(GPU_TRANSPORT) for name in names):
        collector.facts["mpi.gtl"] = Fact(True, "host")
    return tuple(sorted(Path(path).name for path in own))


def _add_fabric(fabric: SiteFabric, collector: _Collector) -> None:
    plugin = fabric.nccl_plugin
    loads = collector.load((*fabric.libraries, *([plugin] if plugin else [])), fabric.search)
    collector.add(loads)
    if plugin in loads:
        needed = loads[plugin].objects[0].elf.needed
        majors = tuple(sorted({major for name in needed if (major := major_of("cudart", name))}))
        collector.facts["fabric.plugin_majors"] = Fact(majors, f"host:{plugin}")


def _names(path: str, closure: Closure) -> set[str]:
    """Return the names of a library: of its file and its soname, except those of C and C++ libraries."""
    names = (Path(path).name, closure.objects[0].elf.soname)
    return {name for name in names if name and not _NEVER.fullmatch(name)}


class _Collector:
    """Collects the files to bind, and their facts."""

    def __init__(self, image: ImageLibraries) -> None:
        self.tree = HostTree()
        self.facts: dict[str, Fact] = {}
        self.files: dict[str, str] = {}
        """Name in `HOST_LIB_DIR` → file of the host."""
        self._image = image
        # Paths of the site file that do not exist; libraries and symbol versions that nothing provides.
        self._absent: list[str] = []
        self._unresolved: list[str] = []
        # Symbol version of the C and C++ libraries → a host library that needs it.
        self._versions: dict[str, str] = {}

    def load(self, paths: Iterable[str], search: Sequence[str]) -> dict[str, Closure]:
        """Return what the host loads with each library; missing libraries are recorded."""
        loads = {}
        for path in paths:
            closure = self.tree.closure(path, search)
            if closure is None:
                self._absent.append(path)
            else:
                loads[path] = closure
        return loads

    def add(self, loads: Mapping[str, Closure], companions: Sequence[str] = ()) -> None:
        """Add libraries, and all that they need."""
        for path, closure in loads.items():
            for name in _names(path, closure):
                self.files.setdefault(name, path)
        for closure in loads.values():
            self._unresolved += [f"{missing.name} (for {missing.path})" for missing in closure.missing]
            self._add_needed(closure, companions)

    def add_companions(self, companions: Sequence[str], search: Sequence[str]) -> None:
        """Add what the libraries in companions need: an MPI opens them by itself."""
        self._absent += [path for path in companions if not exists(Path(path))]
        for path in (path for companion in companions for path in libraries_below(companion)):
            closure = self.tree.closure(path, search)
            # A library that the host cannot load either is for other hardware.
            if closure is not None and not closure.missing:
                self._add_needed(closure, companions)

    def _add_needed(self, closure: Closure, companions: Sequence[str]) -> None:
        self._note_versions(closure.objects[0])
        waiting, seen = [closure.objects[0]], {id(closure.objects[0])}
        for dependent in waiting:
            for name, needed in sorted(dependent.needs.items()):
                if _NEVER.fullmatch(name) or id(needed) in seen:
                    continue
                seen.add(id(needed))
                if self._image_has(name, needed, closure) or self._is_in(companions, needed):
                    continue
                self.files.setdefault(name, needed.path)
                self._note_versions(needed)
                waiting.append(needed)

    def _image_has(self, name: str, needed: Loaded, closure: Closure) -> bool:
        """Return whether the image has a library of the host's distribution, with all needed versions."""
        if not _SYSTEM.fullmatch(needed.path) or name not in self._image.provides:
            return False
        versions = {
            version for loaded in closure.objects for version in loaded.elf.versions_needed.get(name, ())
        }
        return versions <= set(self._image.provides[name])

    def _is_in(self, companions: Sequence[str], needed: Loaded) -> bool:
        """Return whether a library is in a companion and found there without LD_LIBRARY_PATH."""
        prefixes = tuple(f"{path}/" for path in companions)
        parent = needed.parent
        if needed.rule not in ("DT_RPATH", "DT_RUNPATH", "path") or parent is None:
            return False
        is_bound = parent.path in self.files.values()
        return not is_bound and needed.path.startswith(prefixes) and parent.path.startswith(prefixes)

    def _note_versions(self, loaded: Loaded) -> None:
        for name, versions in sorted(loaded.elf.versions_needed.items()):
            if _NEVER.fullmatch(name) is None:
                continue
            provided = self._image.provides.get(name)
            for version in versions:
                if version.startswith(("GLIBC_", "GLIBCXX_")):
                    self._versions.setdefault(version, loaded.path)
                elif provided is not None and version not in provided:
                    self._unresolved.append(f"{version} of {name} (for {loaded.path})")

    def all_facts(self, site: str) -> dict[str, Fact]:
        """Return the facts of all files: which are missing, and the newest versions that they need."""
        facts = self.facts | {
            "injected.absent": Fact(tuple(dict.fromkeys(self._absent)), f"site:{site}"),
            "injected.unresolved": Fact(tuple(dict.fromkeys(self._unresolved)), "host"),
        }
        for library, kind in (("glibc", "GLIBC"), ("libstdcxx", "GLIBCXX")):
            version = newest(self._versions, kind)
            source = f"host:{self._versions[f'{kind}_{version}']}" if version else "host"
            facts[f"{library}.injected"] = Fact(version or "", source)
        return facts
