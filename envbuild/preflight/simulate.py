"""Every process that an image can start, as the loader would make it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from envbuild.elf.loader import Closure, Loaded, Search, cache_directories, closure, default_directories
from envbuild.elf.read import ElfObject
from envbuild.preflight.components import Components, Opened, components
from envbuild.preflight.scan import CACHE, Scanned
from envbuild.preflight.tree import ImageTree
from envbuild.site.host_libs import HOST_LIB_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A program or an extension module, and all that is loaded with it."""

    path: str
    """The program or module."""
    closure: Closure
    """What is loaded."""


class Simulation:
    """The processes of an image.

    Parameters
    ----------
    tree : ImageTree
        Its file systems.
    machine : str
        As in `ElfObject`; files for others are left alone.
    library_path : sequence of str
        LD_LIBRARY_PATH within the image.
    injected : collection of str
        Names of the libraries of a host that stand in `HOST_LIB_DIR`.
    """

    def __init__(
        self, tree: ImageTree, *, machine: str, library_path: Sequence[str], injected: Collection[str] = ()
    ) -> None:
        self.tree = tree
        self.table: Components = components()
        self._lent = {f"{HOST_LIB_DIR}/{name}" for name in injected}
        first = (HOST_LIB_DIR,) if injected else ()
        cached = tree.texts.get(CACHE)
        self.search = Search(
            library_path=(*first, *library_path),
            # Without the cache itself its directories are not known to the loader.
            cache=cache_directories(tree.texts) if tree.real(CACHE) else (),
            cached=None if cached is None else frozenset(cached.splitlines()),
            default=default_directories(machine),
        )
        self.objects: dict[str, Scanned] = {
            path: found for path, found in tree.objects() if found.elf.machine == machine
        }
        self._scanned: dict[int, tuple[str, Scanned]] = {}
        for path, found in self.objects.items():
            # A library that is lent under two names is one.
            self._scanned.setdefault(id(found.elf), (path, found))
        self._together = self._index()
        self._replaced = [
            family for family in self.table.families.values() if any(map(family.is_library, injected))
        ]
        self._opened = {path: self._rows(path, found) for path, found in self.objects.items()}
        self._opens: dict[str, list[str]] = {}
        for path, rows in self._opened.items():
            for row in rows:
                self._opens.setdefault(name_of(path, self.objects[path].elf), []).extend(row.names)

    def scanned(self, loaded: Loaded) -> Scanned:
        """Return all that was read of a loaded object."""
        return self._scanned[id(loaded.found)][1]

    def path_of(self, loaded: Loaded) -> str:
        """Return the path of a loaded object's own file, links followed."""
        return self._scanned[id(loaded.found)][0]

    def opened(self, loaded: Loaded) -> Sequence[Opened]:
        """Return what is known of the names that a loaded object opens."""
        return self._opened[self.path_of(loaded)]

    def processes(self) -> Iterator[Process]:
        """Yield what can be started or imported: all that nothing else loads, programs first.

        A library comes with what loads it; alone it would lack the DT_RPATH of those.
        """
        asked = {name for found in self.objects.values() for name in found.elf.needed}

        def rank(path: str) -> tuple[bool, bool, str]:
            elf = self.objects[path].elf
            leant_on = path.rpartition("/")[2] in asked or elf.soname in asked
            return (leant_on, not elf.interpreter, path)

        reached: set[int] = set()
        for path in sorted(self.objects, key=rank):
            if id(self.objects[path].elf) in reached or self._idle(path):
                continue
            process = self.process(path)
            reached |= {id(loaded.found) for loaded in process.closure.objects}
            yield process

    def _idle(self, path: str) -> bool:
        """Whether a file is a part of what a host's library takes the place of."""
        if self.is_lent(path):
            return False
        names = (path.rpartition("/")[2], self.objects[path].elf.soname)
        return any(family.owns(path, *names) for family in self._replaced)

    def is_lent(self, path: str) -> bool:
        """Whether a file is the host's, not the image's."""
        return path in self._lent

    def process(self, path: str) -> Process:
        """Return what one program or module loads."""
        place = self.table.together_with(path)
        search = self.search
        if place:
            search = replace(search, preset=self._together[place])
        return Process(path=path, closure=closure(path, self.tree, search, opens=self._opens))

    def find(self, name: str) -> Scanned | None:
        """Return the library that a program without search paths of its own gets; None for nothing."""
        search = self.search
        cache = search.cache if search.cached is None or name in search.cached else ()
        places = (*search.library_path, *cache, *search.default)
        hits = (self.tree.at(f"{place}/{name}") for place in places if place)
        return next((found for found in hits if found is not None), None)

    def libraries(self) -> dict[str, tuple[str, ...]]:
        """Return the libraries that `find` finds: name → symbol versions that it defines."""
        found = {name: self.find(name) for name in {path.rpartition("/")[2] for path in self.tree.names()}}
        return {name: scanned.elf.versions_defined for name, scanned in found.items() if scanned is not None}

    def uncached(self, name: str) -> str:
        """Return the path of a library that lies where the cache leads, and is not in it; empty for none."""
        if self.search.cached is None or name in self.search.cached:
            return ""
        paths = (f"{place}/{name}" for place in self.search.cache)
        return next((path for path in paths if self.tree.at(path)), "")

    def _index(self) -> Mapping[str, Mapping[str, str]]:
        """Return, for each directory whose packages load their own libraries, name → path."""
        index: dict[str, dict[str, str]] = {}
        for path in self.tree.names():
            place = self.table.together_with(path)
            found = self.tree.at(path)
            if place and found:
                names = index.setdefault(place, {})
                for name in (path.rpartition("/")[2], found.elf.soname):
                    names.setdefault(name, path)
        return index

    def _rows(self, path: str, found: Scanned) -> list[Opened]:
        names = {path.rpartition("/")[2], found.elf.soname}
        return [
            row
            for row in self.table.opened
            if any(re.fullmatch(row.by, name) for name in names)
            and (not row.written or set(row.names) & set(found.written))
            and (not row.gpu or found.gpu is not None)
            and (not row.where or self._holds(row.where))
        ]

    def _holds(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, path.rpartition("/")[2]) for path in self.objects)


def name_of(path: str, elf: ElfObject) -> str:
    """Return what `envbuild.elf.loader.closure` calls an object: its soname, else its file's name."""
    return elf.soname or path.rpartition("/")[2]
