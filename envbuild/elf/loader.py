"""What the loader would load, and from where: ld.so(8) over any tree; pure.

The order of glibc: an object that is loaded already and has the name; then,
for a name without a slash, DT_RPATH of the object that asks and of those that
loaded it (none of an object that has DT_RUNPATH), LD_LIBRARY_PATH, the
object's own DT_RUNPATH, the cache, the loader's own directories.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from envbuild.elf.read import ElfObject

_LIB = {"amd64": "lib/x86_64-linux-gnu", "arm64": "lib/aarch64-linux-gnu"}
_PLATFORM = {"amd64": "x86_64", "arm64": "aarch64"}
_MAX_OBJECTS = 4096


class Tree(Protocol):
    """A file system, real or not."""

    def lookup(self, path: str) -> ElfObject | None:
        """Return the ELF file at an absolute path, symbolic links followed; None for anything else.

        Two paths that lead to one file give the same object (``is``): the
        loader knows a file that it has loaded, whatever it is called.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where a process's loader looks, beside what objects ask for."""

    library_path: tuple[str, ...] = ()
    """LD_LIBRARY_PATH."""
    cache: tuple[str, ...] = ()
    """Directories of the loader's cache, in the order of ``ld.so.conf``."""
    cached: frozenset[str] | None = None
    """Names that the cache has: what came into its directories later, the loader does not find by it. None
    where that is not known.
    """
    default: tuple[str, ...] = ()
    """The loader's own directories; see `default_directories`."""
    preset: Mapping[str, str] = field(default_factory=dict)
    """Name → path of what the process is known to have loaded under that name by other means, tried last: a
    package's own libraries, which it opens before it imports what needs them.
    """


@dataclass(slots=True, kw_only=True, eq=False)
class Loaded:
    """An object of a process."""

    path: str
    """As it was found: links are not followed, as in ``$ORIGIN``."""
    found: ElfObject
    """What it is."""
    rule: str = "program"
    """Why it was found there: ``program``, ``path``, ``DT_RPATH``, ``LD_LIBRARY_PATH``, ``DT_RUNPATH``,
    ``cache``, ``default`` or ``preset``.
    """
    parent: Loaded | None = None
    """What asked for it first."""
    needs: dict[str, Loaded] = field(default_factory=dict)
    """Name → what it got; names that nothing has are missing."""
    names: set[str] = field(default_factory=set)
    """Under which it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A library that nothing has."""

    path: str
    """What asks for it."""
    name: str
    """The library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """What one process loads before it runs."""

    objects: tuple[Loaded, ...]
    """In the order in which they are loaded, the program first."""
    missing: tuple[Missing, ...]
    """In the order in which the loader would tell them."""


def closure(
    path: str,
    tree: Tree,
    search: Search,
    *,
    preload: Sequence[str] = (),
    opens: Mapping[str, Sequence[str]] | None = None,
) -> Closure:
    """Return all that is loaded with a program, a library or an extension.

    Parameters
    ----------
    path : str
        Where it lies.
    preload : sequence of str
        LD_PRELOAD: names or paths that come before what the program needs.
    opens : mapping of str to sequence of str, optional
        Name of an object (its soname, else the name of its file) → names that it opens by itself;
        looked for as the loader does for that object, after all that is needed.
        Such a one that nothing has is not missing, and none is taken from `Search.preset`.

    Raises
    ------
    ValueError
        There is no such object, or it would load thousands.
    """
    program = tree.lookup(path)
    if program is None:
        raise ValueError(f"no ELF object at {path}")
    first = Loaded(path=path, found=program, names={program.soname} - {""})
    process = _Process(tree, search, first)
    process.load(first, [*preload, *program.needed])
    process.breadth_first()
    if opens:
        # What is opened may open more: the list grows while it is walked.
        for asking in process.objects:
            for name in opens.get(asking.found.soname or asking.path.rpartition("/")[2], ()):
                process.load(asking, [name], optional=True)
                process.breadth_first()
    return Closure(objects=tuple(process.objects), missing=tuple(process.missing))


def resolve(
    name: str,
    asking: Loaded,
    tree: Tree,
    search: Search,
) -> tuple[str, ElfObject, str] | None:
    """Return the path, object and rule by which the loader finds a name that is not loaded yet.

    Parameters
    ----------
    asking : Loaded
        What needs it; its parents, up to the program, lend their DT_RPATH.
    """
    for path, rule in _candidates(name, asking, search):
        found = tree.lookup(path)
        if found is not None and found.machine == asking.found.machine:
            return path, found, rule
    return None


class _Process:
    def __init__(self, tree: Tree, search: Search, first: Loaded) -> None:
        self.tree, self.search, self.first = tree, search, first
        self.objects = [first]
        self.missing: list[Missing] = []
        self._waiting: deque[Loaded] = deque()
        self._known = dict.fromkeys(first.names, first)
        self._files = {id(first.found): first}

    def breadth_first(self) -> None:
        while self._waiting:
            asking = self._waiting.popleft()
            self.load(asking, asking.found.needed)

    def load(self, asking: Loaded, names: Sequence[str], *, optional: bool = False) -> None:
        for name in names:
            loaded = self._known.get(name) or self._find(name, asking, optional=optional)
            if loaded is not None:
                asking.needs[name] = loaded
            elif not optional:
                self.missing.append(Missing(path=asking.path, name=name))

    def _find(self, name: str, asking: Loaded, *, optional: bool) -> Loaded | None:
        search = replace(self.search, preset={}) if optional else self.search
        hit = resolve(name, asking, self.tree, search)
        if hit is None:
            return None
        path, found, rule = hit
        # The same file under another name is loaded once.
        loaded = self._files.get(id(found))
        if loaded is None:
            if len(self.objects) >= _MAX_OBJECTS:
                raise ValueError(f"{self.first.path} would load more than {_MAX_OBJECTS} objects")
            loaded = Loaded(path=path, found=found, rule=rule, parent=asking)
            self._files[id(found)] = loaded
            self.objects.append(loaded)
            self._waiting.append(loaded)
        for known in (name, found.soname):
            if known:
                loaded.names.add(known)
                self._known.setdefault(known, loaded)
        return loaded


def _candidates(name: str, asking: Loaded, search: Search) -> Iterator[tuple[str, str]]:
    if "/" in name:
        yield _expanded(name, asking), "path"
        return
    chain = list(_chain(asking))
    if not asking.found.runpath:
        for above in chain:
            if not above.found.runpath:
                yield from _in(above.found.rpath, name, above, "DT_RPATH")
    yield from _in(search.library_path, name, chain[-1], "LD_LIBRARY_PATH")
    yield from _in(asking.found.runpath, name, asking, "DT_RUNPATH")
    if asking.found.default_directories:
        if search.cached is None or name in search.cached:
            yield from _in(search.cache, name, asking, "cache")
        yield from _in(search.default, name, asking, "default")
    if name in search.preset:
        yield search.preset[name], "preset"


def _chain(asking: Loaded) -> Iterator[Loaded]:
    above: Loaded | None = asking
    while above is not None:
        yield above
        above = above.parent


def _in(directories: Sequence[str], name: str, asking: Loaded, rule: str) -> Iterator[tuple[str, str]]:
    for directory in directories:
        # An empty one means the working directory, which is no part of what is known here.
        if expanded := _expanded(directory, asking):
            yield f"{expanded.rstrip('/')}/{name}", rule


def _expanded(text: str, asking: Loaded) -> str:
    if "$" not in text:
        return text
    machine = asking.found.machine
    values = {
        "ORIGIN": asking.path.rpartition("/")[0] or "/",
        "LIB": _LIB.get(machine, "lib64"),
        "PLATFORM": _PLATFORM.get(machine, machine),
    }
    return re.sub(
        r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))",
        lambda hit: values[hit[1] or hit[2]],
        text,
    )


def default_directories(machine: str) -> tuple[str, ...]:
    """Return the directories that the loader of Debian and of its peers knows without being told.

    Parameters
    ----------
    machine : str
        As in `ElfObject`.
    """
    lib = _LIB.get(machine)
    multiarch = (f"/{lib}", f"/usr/{lib}") if lib else ()
    return (*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib")


def cache_directories(files: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories that ``ld.so.conf`` names, in its order.

    Parameters
    ----------
    files : mapping of str to str
        Path → text of ``/etc/ld.so.conf`` and of what lies in the directories that it includes.
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
                    if _matches(name, whole):
                        yield from _conf(name, files, seen)
        elif line.startswith("/"):
            # `directory=type` is of the time of libc5.
            yield line.partition("=")[0].rstrip("/") or "/"


def _matches(path: str, pattern: str) -> bool:
    """Glob(7), directory by directory."""
    one = "".join("[^/]*" if char == "*" else "[^/]" if char == "?" else re.escape(char) for char in pattern)
    return re.fullmatch(one, path) is not None
