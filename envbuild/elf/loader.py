"""Simulates the loader, ld.so(8), over any tree: which libraries it loads, and from where. Pure.

glibc's order: an object of that name that is already loaded; then, for a name without a slash, DT_RPATH of
the requesting object and of those that loaded it (none of an object that has DT_RUNPATH), LD_LIBRARY_PATH,
the object's own DT_RUNPATH, the cache, the loader's own directories.

Source: glibc, elf/dl-load.c; for the cache sysdeps/generic/dl-cache.h (``cache_file_new``, used since 2.2).
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

from envbuild.elf.read import ElfObject

_LIB = {"amd64": "lib/x86_64-linux-gnu", "arm64": "lib/aarch64-linux-gnu"}
_PLATFORM = {"amd64": "x86_64", "arm64": "aarch64"}
_MAX_OBJECTS = 4096
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sII20x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_MAX_CACHE_ENTRIES = 1 << 20


class Tree(Protocol):
    """A file system, real or not."""

    def lookup(self, path: str) -> ElfObject | None:
        """Return the ELF file at an absolute path, symbolic links followed; None for anything else.

        Two paths of one file must give the same object (``is``): the loader knows a file that it has loaded
        by any name.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Directories that a process's loader searches, besides those that objects name."""

    library_path: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    """Directories of the loader's cache, in the order of ``ld.so.conf``."""
    cached: frozenset[str] | None = None
    """Names in the cache; it does not lead to files added later. None if unknown."""
    default: tuple[str, ...] = ()
    """The loader's own directories; see `default_directories`."""
    preloaded: Mapping[str, str] = field(default_factory=dict)
    """Name → path of the libraries that a package opens before it imports what needs them; tried last."""


@dataclass(slots=True, kw_only=True, eq=False)
class Loaded:
    """An object of a process."""

    path: str
    """As the loader sees it: links are not followed, as in ``$ORIGIN``."""
    elf: ElfObject
    rule: str = "program"
    """How the loader gets there: ``program``, ``path``, ``DT_RPATH``, ``LD_LIBRARY_PATH``, ``DT_RUNPATH``,
    ``cache``, ``default`` or ``preloaded``.
    """
    parent: Loaded | None = None
    """The first object that needs it."""
    needs: dict[str, Loaded] = field(default_factory=dict)
    """Name that it needs → the library that it gets."""
    names: set[str] = field(default_factory=set)
    """Names that others may use for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A library that the loader does not find."""

    path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """The libraries that one process loads before it runs."""

    objects: tuple[Loaded, ...]
    """In the order in which they are loaded, the program first."""
    missing: tuple[Missing, ...]
    """In the order in which the loader would report them."""


def closure(
    path: str, tree: Tree, search: Search, *, opens: Mapping[str, Sequence[str]] | None = None
) -> Closure:
    """Return everything that is loaded with a program, a library or an extension.

    `opens` maps an object (see `name_of`) to names that it opens at run time. The loader looks for them after
    all that is needed, and not among `Search.preloaded`; if one is absent, it is not missing. ValueError:
    there is no such object, or it would load thousands.
    """
    elf = tree.lookup(path)
    if elf is None:
        raise ValueError(f"no ELF object at {path}")
    program = Loaded(path=path, elf=elf, names={elf.soname} - {""})
    process = _Process(tree, search, program)
    process.load(program, elf.needed)
    process.breadth_first()
    if opens:
        # What is opened may open more: the list grows while it is walked.
        for opener in process.objects:
            for name in opens.get(name_of(opener.path, opener.elf), ()):
                process.load(opener, [name], opened=True)
                process.breadth_first()
    return Closure(objects=tuple(process.objects), missing=tuple(process.missing))


def name_of(path: str, elf: ElfObject) -> str:
    """Return the soname of an object, or the name of its file without one."""
    return elf.soname or path.rpartition("/")[2]


class _Process:
    def __init__(self, tree: Tree, search: Search, program: Loaded) -> None:
        self.tree, self.search, self.program = tree, search, program
        self.objects = [program]
        self.missing: list[Missing] = []
        self._waiting: deque[Loaded] = deque()
        self._by_name = dict.fromkeys(program.names, program)
        self._by_file = {id(program.elf): program}

    def breadth_first(self) -> None:
        while self._waiting:
            dependent = self._waiting.popleft()
            self.load(dependent, dependent.elf.needed)

    def load(self, dependent: Loaded, names: Sequence[str], *, opened: bool = False) -> None:
        for name in names:
            loaded = self._by_name.get(name) or self._find(name, dependent, opened=opened)
            if loaded is not None:
                dependent.needs[name] = loaded
            elif not opened:
                self.missing.append(Missing(path=dependent.path, name=name))

    def _find(self, name: str, dependent: Loaded, *, opened: bool) -> Loaded | None:
        for path, rule in _candidates(name, dependent, self.search):
            elf = None if opened and rule == "preloaded" else self.tree.lookup(path)
            if elf is not None and elf.machine == dependent.elf.machine:
                return self._add(name, Loaded(path=path, elf=elf, rule=rule, parent=dependent))
        return None

    def _add(self, name: str, new: Loaded) -> Loaded:
        # The same file under another name is loaded once.
        loaded = self._by_file.setdefault(id(new.elf), new)
        if loaded is new:
            if len(self.objects) >= _MAX_OBJECTS:
                raise ValueError(f"{self.program.path} would load more than {_MAX_OBJECTS} objects")
            self.objects.append(new)
            self._waiting.append(new)
        for alias in filter(None, (name, new.elf.soname)):
            loaded.names.add(alias)
            self._by_name.setdefault(alias, loaded)
        return loaded


def _candidates(name: str, dependent: Loaded, search: Search) -> Iterator[tuple[str, str]]:
    if "/" in name:
        yield _expanded(name, dependent), "path"
        return
    chain = [dependent]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    if not dependent.elf.runpath:
        for above in chain:
            if not above.elf.runpath:
                yield from _in(above.elf.rpath, name, above, "DT_RPATH")
    yield from _in(search.library_path, name, chain[-1], "LD_LIBRARY_PATH")
    yield from _in(dependent.elf.runpath, name, dependent, "DT_RUNPATH")
    if dependent.elf.default_directories:
        if search.cached is None or name in search.cached:
            yield from _in(search.cache, name, dependent, "cache")
        yield from _in(search.default, name, dependent, "default")
    if name in search.preloaded:
        yield search.preloaded[name], "preloaded"


def _in(directories: Sequence[str], name: str, dependent: Loaded, rule: str) -> Iterator[tuple[str, str]]:
    for directory in directories:
        # An empty entry means the working directory, which is unknown here.
        if expanded := _expanded(directory, dependent):
            yield f"{expanded.rstrip('/')}/{name}", rule


def _expanded(text: str, dependent: Loaded) -> str:
    if "$" not in text:
        return text
    machine = dependent.elf.machine
    values = {
        "ORIGIN": dependent.path.rpartition("/")[0] or "/",
        "LIB": _LIB.get(machine, "lib64"),
        "PLATFORM": _PLATFORM.get(machine, machine),
    }
    return re.sub(
        r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))",
        lambda hit: values[hit[1] or hit[2]],
        text,
    )


def default_directories(machine: str) -> tuple[str, ...]:
    """Return the directories that Debian's loader always searches on a machine (``amd64``)."""
    lib = _LIB.get(machine)
    multiarch = (f"/{lib}", f"/usr/{lib}") if lib else ()
    return (*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib")


def cache_directories(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories that ``/etc/ld.so.conf`` names, in its order.

    `files` maps paths to texts: that file and those that it may include.
    """
    return tuple(dict.fromkeys(_conf("/etc/ld.so.conf", files, set())))


def _conf(path: str, files: Mapping[str, str], seen: set[str]) -> Iterator[str]:
    if path in seen:
        return
    seen.add(path)
    for raw in files.get(path, "").splitlines():
        line = raw.partition("#")[0].strip()
        verb, _, rest = line.partition(" ")
        if verb == "include":
            for pattern in rest.split():
                whole = pattern if pattern.startswith("/") else f"{path.rpartition('/')[0]}/{pattern}"
                for name in sorted(files):
                    if PurePosixPath(name).match(whole):
                        yield from _conf(name, files, seen)
        elif line.startswith("/"):
            # `directory=type` is of the time of libc5.
            yield line.partition("=")[0].rstrip("/") or "/"


def cached_names(data: bytes) -> tuple[str, ...] | None:
    """Return the names in the loader's cache, sorted; None if it is damaged or of another form.

    An older form may precede it in the same file; offsets count from the start of this one.
    """
    start = data.find(_CACHE_MAGIC)
    if start < 0 or len(data) < start + _CACHE_HEADER.size:
        return None
    _, count, _ = _CACHE_HEADER.unpack_from(data, start)
    if count > _MAX_CACHE_ENTRIES or len(data) < start + _CACHE_HEADER.size + count * _CACHE_ENTRY.size:
        return None
    names = set()
    for number in range(count):
        at = start + _CACHE_HEADER.size + number * _CACHE_ENTRY.size
        _, key, _, _, _ = _CACHE_ENTRY.unpack_from(data, at)
        end = data.find(b"\0", start + key)
        if end < 0:
            return None
        try:
            names.add(data[start + key : end].decode("ascii"))
        except UnicodeDecodeError:
            return None
    return tuple(sorted(names))
