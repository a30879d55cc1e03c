"""Plan the parts of a host that an image uses: its MPI, its fabric's libraries, and software of the site.

Libraries, with those that they need and the image lacks, are bound file by file into `HOST_LIB_DIR`, which
the image's loader searches first; Python packages and commands of the site into directories beside it. On
the host these are in a staging directory, with an empty file for each file. Nothing else of the host is
bound but the companions and devices that the site file names, each at its own path. A plan holds the facts
of the host's files; the rules judge whether they fit.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.elf.loader import Closure, Loaded
from envbuild.errors import RequestError
from envbuild.jobs.envbuild_libraries import GPU_TRANSPORT, ONCE, is_library, major_of
from envbuild.rules.facts import Fact, newest
from envbuild.rules.from_site import fabric_settings
from envbuild.site.libraries import HostTree, libraries_below
from envbuild.spec.model import C_LIBRARIES
from envbuild.spec.recipe import Supplied
from envbuild.spec.site import Site, SiteFabric, SiteMpi, SiteSupply
from envbuild.system.apptainer import Bind
from envbuild.system.files import exists, sha256

# Every base has this empty directory, so no overlay is needed, and no centre binds anything there.
BIND_ROOT = "/media"
HOST_LIB_DIR = f"{BIND_ROOT}/envbuild"
HOST_PYTHON_DIR = f"{BIND_ROOT}/envbuild-python"
HOST_COMMAND_DIR = f"{BIND_ROOT}/envbuild-bin"
# Always the image's own, or a process would load two C or C++ libraries.
_NEVER = re.compile(C_LIBRARIES)
# Of the file name of an extension module: `fast.cpython-311-x86_64-linux-gnu.so`.
_EXTENSION = re.compile(r"[^.]+\.cpython-([0-9]+)[a-z]*-[^.]*\.so")
# Most files of the Python packages of a site that are read.
_MAX_FILES = 20_000
# Digests of the software of a site that a verdict shows each; of further files it has one digest.
_SHOWN_DIGESTS = 4
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
    architecture: str = ""
    """Architecture of its processors, in Debian's words; empty if unknown."""
    python: str = ""
    """Version of its Python (``3.11``); empty if unknown."""
    path: str = ""
    """PATH in the image's own environment."""
    supplied: Mapping[str, Supplied] = field(default_factory=dict)
    """Recipe → the parts that a site supplies for it."""
    modules: AbstractSet[str] = frozenset()
    """Those of the modules of `supplied` that the image itself has."""


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
    supplied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Recipe of the kind ``site`` → names of its libraries among `files`, sorted."""
    python: dict[str, str] = field(default_factory=dict)
    """Name in `HOST_PYTHON_DIR` → Python package or module of the host."""
    commands: dict[str, str] = field(default_factory=dict)
    """Name in `HOST_COMMAND_DIR` → command of the host."""
    companions: tuple[str, ...] = ()
    """Paths that the host's MPI and the software of the site open by themselves, bound at the same path."""
    devices: tuple[str, ...] = ()
    """Device files of this node, bound at their own paths."""
    environment: dict[str, str]
    """Variables of the image, including LD_LIBRARY_PATH."""
    facts: dict[str, Fact] = field(default_factory=dict)
    """Facts of the host's files, for the rules."""
    errors: tuple[RequestError, ...] = ()
    """Information that the site file lacks."""

    @property
    def has_site_software(self) -> bool:
        """Whether recipes of the image take software from the site."""
        return bool(self.supplied or self.python or self.commands)

    @property
    def links(self) -> dict[str, str]:
        """Names that compilers use (``libmpi.so``) → names of `files`; mpi4py opens them."""
        names = {f"{name.partition('.so')[0]}.so": name for name in self.mpi_files}
        return {link: name for link, name in names.items() if link != name}

    @property
    def by_name(self) -> dict[str, Path]:
        """Every name in `HOST_LIB_DIR` → file of the host."""
        files = {name: Path(path) for name, path in self.files.items()}
        return files | {link: files[name] for link, name in self.links.items()}

    @property
    def identities(self) -> dict[str, str]:
        """Facts of the host for verdicts.

        ``mpi`` → name, version and digests, or ``lent`` → digests; and ``site`` → digests of its software.
        """
        of_site = {name for names in self.supplied.values() for name in names}
        shared = self.mpi_files or [name for name in self.files if name not in of_site]
        digests = [sha256(Path(self.files[name]))[:12] for name in shared]
        facts = {"lent": " ".join(digests)} if digests else {}
        if self.mpi is not None and self.mpi_files:
            version = [self.mpi.version] if self.mpi.version else []
            facts = {"mpi": " ".join([self.mpi.implementation, *version, *digests])}
        paths = [self.files[name] for name in sorted(of_site)]
        paths += [
            *self.commands.values(),
            *(file for path in self.python.values() for file in files_below(path)),
        ]
        if paths:
            facts["site"] = " ".join(sha256(Path(path))[:12] for path in paths[:_SHOWN_DIGESTS])
            rest = hashlib.sha256("".join(sha256(Path(path)) for path in paths[_SHOWN_DIGESTS:]).encode())
            facts["site"] += f" {rest.hexdigest()[:12]}" if len(paths) > _SHOWN_DIGESTS else ""
        return facts

    @property
    def _targets(self) -> dict[str, str]:
        """Path in the image, below `BIND_ROOT` → file or directory of the host."""
        by_directory = (
            (HOST_LIB_DIR, self.files),
            (HOST_PYTHON_DIR, self.python),
            (HOST_COMMAND_DIR, self.commands),
        )
        return {
            f"{directory}/{name}": path for directory, paths in by_directory for name, path in paths.items()
        }

    @property
    def stage_names(self) -> list[list[str]]:
        """The names in a staging directory, each with its kind, or the name that a link leads to; sorted."""
        kinds = {
            target: "directory" if Path(source).is_dir() else "file"
            for target, source in self._targets.items()
        }
        return sorted([name, kind] for name, kind in (kinds | self.links).items())

    def binds(self, stage: Path) -> tuple[Bind, ...]:
        """Return the binds of a start, in order; `fill_stage` has filled the directory `stage`."""
        return (
            Bind(source=stage, target=BIND_ROOT),
            *(Bind(source=path, target=target) for target, path in self._targets.items()),
            *(Bind(source=path, target=path) for path in self.companions),
            *(Bind(source=path, target=path, writable=True) for path in self.devices),
        )

    def fill_stage(self, stage: Path) -> None:
        """Fill the staging directory: an empty file or directory for each bind, and the links; idempotent."""
        directory = stage / HOST_LIB_DIR.removeprefix(f"{BIND_ROOT}/")
        directory.mkdir(parents=True, exist_ok=True)
        for target, source in self._targets.items():
            path = stage / target.removeprefix(f"{BIND_ROOT}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if Path(source).is_dir():
                path.mkdir(exist_ok=True)
            else:
                path.touch()
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
    """Return the parts that an image takes from a site: its MPI, its fabric's libraries, and its software.

    Software is taken for each of the image's recipes of the kind ``site``.
    A fabric's variables select it and exclude any other: they follow from its provider, and the site's own
    are added. NCCL finds its plug-in by name in `HOST_LIB_DIR`. If MPI and fabric both have a library or set
    a variable, the MPI's counts; before those of software of the site.
    """
    host_mpi, host_fabric = site.mpi if mpi else None, site.fabric if fabric else None
    collector = _Collector(image)
    # Without libraries, the facts come from the site file alone.
    mpi_files = _add_mpi(host_mpi, image, collector) if host_mpi and host_mpi.libraries else ()
    if host_fabric:
        _add_fabric(host_fabric, collector)
    devices = host_fabric.devices if host_fabric else ()
    supplies = _add_supplied(site, image, collector)
    companions = (
        *(host_mpi.companions if host_mpi else ()),
        *(path for entry in supplies for path in entry.companions),
    )
    paths = {"LD_LIBRARY_PATH": f"{HOST_LIB_DIR}:{image.library_path}"}
    paths |= {"PYTHONPATH": HOST_PYTHON_DIR} if collector.python else {}
    paths |= {"PATH": f"{HOST_COMMAND_DIR}:{image.path}"} if collector.commands else {}
    return HostLibraryPlan(
        mpi=host_mpi,
        abis=image.abis if mpi else (),
        mpi_files=mpi_files,
        files=dict(sorted(collector.files.items())),
        supplied={recipe: tuple(sorted(names)) for recipe, names in collector.of_recipe.items() if names},
        python=dict(sorted(collector.python.items())),
        commands=dict(sorted(collector.commands.items())),
        companions=tuple(dict.fromkeys(companions)),
        # A login node has no such devices.
        devices=tuple(path for path in devices if exists(Path(path))),
        environment={
            **(fabric_settings(host_fabric) if host_fabric else {}),
            **{name: value for entry in supplies for name, value in entry.environment.items()},
            **(host_mpi.environment if host_mpi else {}),
            **paths,
        },
        facts=collector.all_facts(site.name),
        errors=(*_unspecified(site, mpi=mpi, fabric=fabric), *_unsupplied(site, image)),
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


def _unsupplied(site: Site, image: ImageLibraries) -> Iterable[RequestError]:
    """Yield an error for each recipe of an image for which a site supplies nothing."""
    for recipe, needed in image.supplied.items():
        if recipe not in site.supplies:
            keys = ("libraries", "python", "commands")
            lines = [
                f"{key}: [/…/{', /…/'.join(getattr(needed, key))}]" for key in keys if getattr(needed, key)
            ]
            hint = f"name them in its file: `supplies: {{{recipe}: {{{', '.join(lines)}}}}}`"
            yield RequestError(
                f"the image needs `{recipe}`, and the site `{site.name}` does not supply it", hint=hint
            )


def _add_supplied(site: Site, image: ImageLibraries, collector: _Collector) -> list[SiteSupply]:
    """Add the software of a site for the recipes of an image; return the used entries of the site file."""
    used = []
    lacking: list[str] = []
    for recipe, needed in sorted(image.supplied.items()):
        supply = site.supplies.get(recipe)
        if supply is None:
            lacking.append(recipe)
            continue
        used.append(supply)
        collector.add_supply(recipe, supply, needed)
        names = collector.of_recipe[recipe]
        offered = {
            "libraries": names,
            "python": {module_of(path) for path in supply.python},
            "commands": {Path(path).name for path in supply.commands},
            "environment": supply.environment.keys(),
        }
        needed_names = {
            **{key: getattr(needed, key) for key in ("libraries", "python", "commands")},
            "environment": needed.variables,
        }
        lacking += [
            f"{name} (`supplies.{recipe}.{key}`)"
            for key, values in needed_names.items()
            for name in values
            if name not in offered[key]
        ]
    if image.supplied:
        collector.facts["injected.unsupplied"] = Fact(tuple(lacking), f"site:{site.name}")
    return used


def module_of(path: str) -> str:
    """Return the module that Python imports from a file or directory (``fast`` for ``fast.abi3.so``)."""
    return Path(path).name.partition(".")[0]


def files_below(path: str) -> tuple[str, ...]:
    """Return the files at or below a path, without compiled Python; at most one more than `_MAX_FILES`."""
    if not Path(path).is_dir():
        return (path,)
    files: list[str] = []
    for directory, below, names in os.walk(path):
        below[:] = sorted(name for name in below if name != "__pycache__")
        files += [f"{directory}/{name}" for name in sorted(names)]
        if len(files) > _MAX_FILES:
            break
    return tuple(files[: _MAX_FILES + 1])


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


def _libraries_of(path: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return a library, or the libraries of these names in a directory."""
    if not Path(path).is_dir():
        return (path,)
    return tuple(f"{path}/{name}" for name in names if exists(Path(path) / name))


class _Collector:
    """Collects the files to bind, and their facts."""

    def __init__(self, image: ImageLibraries) -> None:
        self.tree = HostTree()
        self.facts: dict[str, Fact] = {}
        self.files: dict[str, str] = {}
        """Name in `HOST_LIB_DIR` → file of the host."""
        self.of_recipe: dict[str, set[str]] = {}
        """Recipe of the kind ``site`` → names of its libraries among `files`."""
        self.python: dict[str, str] = {}
        """Name in `HOST_PYTHON_DIR` → package or module of the host."""
        self.commands: dict[str, str] = {}
        """Name in `HOST_COMMAND_DIR` → command of the host."""
        # Files for another processor or another Python, or that would hide those of the image.
        self._foreign: list[str] = []
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

    def add_supply(self, recipe: str, supply: SiteSupply, needed: Supplied) -> None:
        """Add libraries, Python packages and commands of a site, with the libraries that they need."""
        directories = [path for path in supply.libraries if Path(path).is_dir()]
        search = (*supply.search, *directories)
        paths = [path for entry in supply.libraries for path in _libraries_of(entry, needed.libraries)]
        loads = self.load(paths, search)
        self.of_recipe[recipe] = set()
        for path, closure in loads.items():
            for name in _names(path, closure):
                self.of_recipe[recipe].add(name)
                if self.files.setdefault(name, path) != path:
                    self._foreign.append(f"{path}: {self.files[name]} has the same name")
        binaries = {}
        for path in supply.python:
            self.python[Path(path).name] = path
            if module_of(path) in self._image.modules:
                self._foreign.append(f"{path}: the image itself has the module `{module_of(path)}`")
            files = files_below(path) if exists(Path(path)) else ()
            if len(files) > _MAX_FILES:
                self._foreign.append(f"{path}: more than {_MAX_FILES} files, which are not all read")
            for file in (file for file in files if Path(file).name.endswith(".so")):
                self._note_extension(file)
                binaries.update(self.load([file], search))
        for path in supply.commands:
            self.commands[Path(path).name] = path
            # A script is not an ELF file.
            program = self.tree.closure(path, search)
            binaries.update({path: program} if program is not None else {})
        gone = (*supply.python, *supply.commands, *supply.companions)
        self._absent += [path for path in gone if not exists(Path(path))]
        for closure in (*loads.values(), *binaries.values()):
            self._note_missing(closure)
            self._add_needed(closure, (*supply.companions, *supply.python), of_site=True)

    def _note_missing(self, closure: Closure) -> None:
        """Record what a host lacks of the needs of its software, and the image lacks, too."""
        for missing in closure.missing:
            if missing.name not in self._image.provides and missing.name not in self.files:
                self._unresolved.append(f"{missing.name} (for {missing.path})")

    def _note_extension(self, path: str) -> None:
        """Record an extension module that is for another Python than the image's."""
        match, python = _EXTENSION.fullmatch(Path(path).name), self._image.python.replace(".", "")
        if match is not None and python and match[1] != python:
            self._foreign.append(f"{path}: for cp{match[1]}, and the image has cp{python}")

    def add_companions(self, companions: Sequence[str], search: Sequence[str]) -> None:
        """Add what the libraries in companions need: an MPI opens them by itself."""
        self._absent += [path for path in companions if not exists(Path(path))]
        for path in (path for companion in companions for path in libraries_below(companion)):
            closure = self.tree.closure(path, search)
            # A library that the host cannot load either, or for another processor, is for other hardware.
            if closure is not None and not closure.missing and self._is_for_image(closure.objects[0]):
                self._add_needed(closure, companions)

    def _add_needed(self, closure: Closure, companions: Sequence[str], *, of_site: bool = False) -> None:
        self._note_versions(closure.objects[0])
        waiting, seen = [closure.objects[0]], {id(closure.objects[0])}
        for dependent in waiting:
            for name, needed in sorted(dependent.needs.items()):
                if _NEVER.fullmatch(name) or id(needed) in seen:
                    continue
                seen.add(id(needed))
                if self._image_has(name, needed, closure) or self._is_in(companions, needed):
                    continue
                if of_site and self._is_of_image(name):
                    continue
                self.files.setdefault(name, needed.path)
                self._note_versions(needed)
                waiting.append(needed)

    def _is_of_image(self, name: str) -> bool:
        """Return whether a library is of a family of which a process has one, and the image has it."""
        return name in self._image.provides and any(is_library(family, name) for family in ONCE)

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

    def _is_for_image(self, loaded: Loaded) -> bool:
        return self._image.architecture in ("", loaded.elf.machine)

    def _note_versions(self, loaded: Loaded) -> None:
        if not self._is_for_image(loaded):
            needed = self._image.architecture
            self._foreign.append(f"{loaded.path}: for {loaded.elf.machine}, and the image is for {needed}")
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
            "injected.foreign": Fact(tuple(dict.fromkeys(self._foreign)), "host"),
        }
        for library, kind in (("glibc", "GLIBC"), ("libstdcxx", "GLIBCXX")):
            version = newest(self._versions, kind)
            source = f"host:{self._versions[f'{kind}_{version}']}" if version else "host"
            facts[f"{library}.injected"] = Fact(version or "", source)
        return facts
