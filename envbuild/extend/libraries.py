"""Which libraries the compiled modules of an addition need, and the image lacks."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from envbuild.elf.loader import Search, cache_directories, closure, default_directories
from envbuild.elf.read import ElfObject, read_elf
from envbuild.extend.files import ImageFiles
from envbuild.extend.packages import Addition
from envbuild.preflight.components import components
from envbuild.preflight.missing import HOST_LIBRARIES
from envbuild.squashfs.format import SquashfsError
from envbuild.store.tree import walk

_LIBRARY = re.compile(r".+\.so(\.[0-9.]+)?")
_CONF = re.compile(r"/etc/ld\.so\.conf(\.d/[^/]+)?")
_MAX_CONF_BYTES = 64 << 10


def missing_libraries(addition: Addition, image: ImageFiles, tree: Path) -> dict[str, str]:
    """Return the libraries that added modules need and that nothing brings: name → a path that needs it.

    Drivers, and what an image leaves to its host's fabric, are no part of it. `tree` is what `lay_out`
    returned. Only the files on the way are read.
    """
    added = [f"/{path.relative_to(tree)}" for path, _ in walk(tree) if _LIBRARY.fullmatch(path.name)]
    both = _Both(image, tree)
    texts = {path: image.read(path, _MAX_CONF_BYTES) or "" for path in image.entries if _CONF.fullmatch(path)}
    table = components()
    # Packages open what lies beside them before their modules need it.
    beside = [path for path in image.entries if _LIBRARY.fullmatch(path)]
    preloaded = {
        posixpath.basename(path): path for path in (*beside, *added) if table.self_loading_directory(path)
    }
    search = Search(
        library_path=addition.python.library_path,
        cache=cache_directories(texts),
        default=default_directories(addition.python.architecture),
        preloaded=preloaded,
    )
    missing: dict[str, str] = {}
    for path in added:
        if both.lookup(path) is not None:
            for library in closure(path, both, search).missing:
                if not HOST_LIBRARIES.match(library.name):
                    missing.setdefault(library.name, library.path)
    return missing


class _Both:
    """The image with the added tree over it, as `envbuild.elf.loader.Tree`."""

    def __init__(self, image: ImageFiles, tree: Path) -> None:
        self._image, self._tree = image, tree
        self._known: dict[str, ElfObject | None] = {}

    def lookup(self, path: str) -> ElfObject | None:
        place = posixpath.normpath(path)
        mine = (self._tree / place.lstrip("/")).is_file()
        if not mine:
            place = self._image.real(path) or ""
        if place not in self._known:
            self._known[place] = self._read(place, mine=mine)
        return self._known[place]

    def _read(self, place: str, *, mine: bool) -> ElfObject | None:
        try:
            if mine:
                with (self._tree / place.lstrip("/")).open("rb") as file:
                    return read_elf(file)
            entry = self._image.entries.get(place)
            if entry is None or entry.kind != "file":
                return None
            with self._image.open(entry) as file:
                return read_elf(file)
        except SquashfsError:
            raise
        except ValueError:
            # The loader refuses it; that is not what is judged here.
            return None
