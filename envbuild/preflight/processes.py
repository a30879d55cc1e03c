"""Simulates the loading of every process that an image can start. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.utils import NormalizedName, canonicalize_name

from envbuild.elf.loader import (
    Closure,
    Loaded,
    Search,
    cache_directories,
    closure,
    default_directories,
    name_of,
)
from envbuild.elf.read import ElfObject
from envbuild.preflight.components import Components, DlopenRule, components
from envbuild.preflight.scan import CACHE, FileSystemScan, ScannedFile
from envbuild.site.host_libs import BIND_ROOT, HOST_LIB_DIR
from envbuild.system.links import follow


class ImageTree:
    """The files of an image, as the loader sees them.

    `host_libs` are the host's libraries by name, in the directory `HOST_LIB_DIR`, as when the image runs;
    they hide the image's own files below `BIND_ROOT`.
    """

    def __init__(self, scan: FileSystemScan, host_libs: Mapping[str, ScannedFile] | None = None) -> None:
        self.scan = scan
        # A tuple holds the target of a link; None stands for a directory or another file.
        self._nodes: dict[str, ScannedFile | tuple[str] | None] = dict.fromkeys(
            ("/", *scan.directories, *scan.files, *scan.texts)
        )
        self._nodes |= {path: (target,) for path, target in scan.links.items()}
        self._nodes |= scan.objects
        if host_libs:
            for path in [path for path in self._nodes if path.startswith(f"{BIND_ROOT}/")]:
                del self._nodes[path]
            self._nodes |= {BIND_ROOT: None, HOST_LIB_DIR: None}
            self._nodes |= {f"{HOST_LIB_DIR}/{name}": library for name, library in host_libs.items()}
        self._directories: dict[str, str | None] = {}

    def lookup(self, path: str) -> ElfObject | None:
        """Return the ELF file at a path, links followed; see `envbuild.elf.loader.Tree`."""
        scanned = self.at(path)
        return scanned.elf if scanned else None

    def at(self, path: str) -> ScannedFile | None:
        """Return the scanned ELF file at a path, links followed; None for anything else."""
        node = self._nodes.get(self.real(path) or "")
        return node if isinstance(node, ScannedFile) else None

    def real(self, path: str) -> str | None:
        """Return where an absolute path leads, links followed; None if it leads nowhere."""
        parent, _, name = path.rpartition("/")
        # Many names are looked up in few directories.
        if parent not in self._directories:
            self._directories[parent] = self._walk("/", parent)
        directory = self._directories[parent]
        return None if directory is None else self._walk(directory, name)

    def objects(self) -> Iterator[tuple[str, ScannedFile]]:
        """Yield every ELF file with its own path, sorted by path."""
        return ((path, file) for path, file in self.names() if self._nodes[path] is file)

    def names(self) -> Iterator[tuple[str, ScannedFile]]:
        """Yield every ELF file with each path that leads to it, sorted by path."""
        for path in sorted(path for path, node in self._nodes.items() if node is not None):
            file = self.at(path)
            if file is not None:
                yield path, file

    def _walk(self, start: str, path: str) -> str | None:
        place, missing = follow(path, self._look, start=start)
        return None if missing else place

    def _look(self, path: str) -> str | None:
        if path not in self._nodes:
            return None
        node = self._nodes[path]
        return node[0] if isinstance(node, tuple) else ""


def _package(path: str, directory: str) -> NormalizedName:
    """Return the package below a directory that a file is part of (`torch` for ``torch/lib/x.so``)."""
    top = path.removeprefix(f"{directory}/").partition("/")[0]
    return canonicalize_name(top.removesuffix(".libs"))


class Simulation:
    """The processes of an image with these libraries of the host (see `ImageTree`).

    `library_path` is LD_LIBRARY_PATH in the image; files for other machines (see `ElfObject`) are ignored.
    """

    def __init__(
        self,
        scan: FileSystemScan,
        *,
        machine: str,
        library_path: Sequence[str],
        host_libs: Mapping[str, ScannedFile],
    ) -> None:
        self.tree = ImageTree(scan, host_libs)
        self.table: Components = components()
        self._host_paths = {f"{HOST_LIB_DIR}/{name}" for name in host_libs}
        cached = scan.texts.get(CACHE)
        self.search = Search(
            library_path=(*((HOST_LIB_DIR,) if host_libs else ()), *library_path),
            # Without the cache itself the loader does not know its directories.
            cache=cache_directories(scan.texts) if self.tree.real(CACHE) else (),
            cached=None if cached is None else frozenset(cached.splitlines()),
            default=default_directories(machine),
        )
        self.objects = {path: file for path, file in self.tree.objects() if file.elf.machine == machine}
        # A host's library with two names is one file.
        self._by_elf: dict[int, tuple[str, ScannedFile]] = {}
        for path, file in self.objects.items():
            self._by_elf.setdefault(id(file.elf), (path, file))
        self._replaced = [
            family for family in self.table.families.values() if any(map(family.is_library, host_libs))
        ]
        self.names = {path.rpartition("/")[2] for path, _ in self.tree.names()}
        """Names of all ELF files."""
        self.needed = {name for file in self.objects.values() for name in file.elf.needed}
        """Names of the libraries that some file needs."""
        self._self_loading = self._index()
        self._requirements = {
            canonicalize_name(distribution.name): {
                canonicalize_name(match[0])
                for line in distribution.requires
                if (match := re.match(r"[A-Za-z0-9._-]+", line))
            }
            for distribution in scan.distributions.values()
        }
        self._dlopens = {path: self._rules(path, file) for path, file in self.objects.items()}
        self._opens: dict[str, list[str]] = {}
        for path, rules in self._dlopens.items():
            for rule in rules:
                self._opens.setdefault(name_of(path, self.objects[path].elf), []).extend(rule.names)

    def scanned(self, loaded: Loaded) -> ScannedFile:
        """Return the scan of a loaded object."""
        return self._by_elf[id(loaded.elf)][1]

    def path_of(self, loaded: Loaded) -> str:
        """Return the path of a loaded object's own file, links followed."""
        return self._by_elf[id(loaded.elf)][0]

    def dlopens(self, loaded: Loaded) -> Sequence[DlopenRule]:
        """Return the rules on the names that a loaded object opens."""
        return self._dlopens[self.path_of(loaded)]

    def processes(self) -> Iterator[Closure]:
        """Yield the files that are started or imported: all that no other file loads, programs first.

        A library comes with the files that load it; alone it would lack their DT_RPATH.
        """
        needed = self.needed

        def rank(path: str) -> tuple[bool, bool, str]:
            elf = self.objects[path].elf
            needed_by_others = path.rpartition("/")[2] in needed or elf.soname in needed
            return (needed_by_others, not elf.interpreter, path)

        reached: set[int] = set()
        for path in sorted(self.objects, key=rank):
            if id(self.objects[path].elf) in reached or self._is_replaced(path):
                continue
            process = self.process(path)
            reached |= {id(loaded.elf) for loaded in process.objects}
            yield process

    def _is_replaced(self, path: str) -> bool:
        """Return whether a file belongs to a library that a host's replaces."""
        if self.is_host_file(path):
            return False
        names = (path.rpartition("/")[2], self.objects[path].elf.soname)
        return any(family.owns(path, *names) for family in self._replaced)

    def is_host_file(self, path: str) -> bool:
        """Return whether a file is the host's, not the image's."""
        return path in self._host_paths

    def process(self, path: str) -> Closure:
        """Return the libraries that one program or module loads."""
        directory = self.table.self_loading_directory(path)
        if not directory:
            return closure(path, self.tree, self.search, opens=self._opens)
        required = self._required(path, directory)
        preloaded = {
            name: library
            for name, library in self._self_loading[directory].items()
            if required is None
            or not self.table.is_of_compiler(name)
            or _package(library, directory) in required
        }
        return closure(path, self.tree, replace(self.search, preloaded=preloaded), opens=self._opens)

    def _required(self, path: str, directory: str) -> set[NormalizedName] | None:
        """Return the packages that a file's package requires, itself included; None if it is unknown."""
        required: set[NormalizedName] = set()
        new = {_package(path, directory)} & self._requirements.keys()
        while new:
            required |= new
            wanted = {name for package in new for name in self._requirements[package]}
            new = wanted & self._requirements.keys() - required
        return required or None

    def find(self, name: str) -> ScannedFile | None:
        """Return the library that a program without search paths gets; None if it gets none."""
        search = self.search
        cache = search.cache if search.cached is None or name in search.cached else ()
        directories = (*search.library_path, *cache, *search.default)
        files = (self.tree.at(f"{directory}/{name}") for directory in directories if directory)
        return next((file for file in files if file is not None), None)

    def libraries(self) -> dict[str, tuple[str, ...]]:
        """Return the libraries that `find` finds: name → symbol versions that it defines."""
        files = {name: self.find(name) for name in sorted(self.names)}
        return {name: file.elf.versions_defined for name, file in files.items() if file is not None}

    def uncached(self, name: str) -> str:
        """Return the path of a library in a directory of the cache that the cache lacks; else empty."""
        if self.search.cached is None or name in self.search.cached:
            return ""
        paths = (f"{directory}/{name}" for directory in self.search.cache)
        return next((path for path in paths if self.tree.at(path)), "")

    def _index(self) -> Mapping[str, Mapping[str, str]]:
        """Return, for each directory whose packages load their own libraries, name → path."""
        index: dict[str, dict[str, str]] = {}
        for path, _ in self.tree.names():
            directory = self.table.self_loading_directory(path)
            if directory:
                index.setdefault(directory, {}).setdefault(path.rpartition("/")[2], path)
        return index

    def _rules(self, path: str, file: ScannedFile) -> list[DlopenRule]:
        return [
            rule
            for rule in self.table.dlopens
            if rule.opens(path.rpartition("/")[2], file.elf.soname)
            and (not rule.name_in_file or set(rule.names) & set(file.names_in_file))
            and (not rule.gpu or file.gpu is not None)
            and (not rule.image_holds or self._holds(rule.image_holds))
        ]

    def _holds(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, path.rpartition("/")[2]) for path in self.objects)
