"""The file systems of an image, one above the other: what a path leads to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from envbuild.elf.read import ElfObject
from envbuild.preflight.installed import Installed
from envbuild.preflight.scan import LayerScan, Scanned
from envbuild.site.host_libs import BIND_ROOT, HOST_LIB_DIR

_MAX_LINKS = 40

_DIRECTORY, _FILE = "directory", "file"
# A link is a tuple of its target; the others are what they are.
_Node = str | tuple[str] | Scanned


class ImageTree:
    """What an image's processes see, as far as the loader cares.

    Upper layers hide the same paths of lower ones, directories are merged, and
    a whiteout hides all below it (overlay file systems).

    Parameters
    ----------
    layers : sequence of LayerScan
        From bottom to top.
    injected : mapping of str to Scanned
        Name → library of the host, in the directory `HOST_LIB_DIR`, as when the image runs: what the
        image itself has at `BIND_ROOT` is hidden then.
    """

    def __init__(self, layers: Sequence[LayerScan], injected: Mapping[str, Scanned] | None = None) -> None:
        self._nodes: dict[str, _Node] = {"/": _DIRECTORY}
        self.texts: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self.distributions: dict[str, Installed] = {}
        for layer in layers:
            self._add(layer)
        if injected:
            self._hide(BIND_ROOT)
            self._nodes |= {BIND_ROOT: _DIRECTORY, HOST_LIB_DIR: _DIRECTORY}
            self._nodes |= {f"{HOST_LIB_DIR}/{name}": one for name, one in injected.items()}
        self._directories: dict[str, str | None] = {}

    def lookup(self, path: str) -> ElfObject | None:
        """Return the ELF file at a path, links followed; see `envbuild.elf.loader.Tree`."""
        found = self.at(path)
        return found.elf if found else None

    def at(self, path: str) -> Scanned | None:
        """Return what was read of the ELF file at a path, links followed; None for anything else."""
        node = self._nodes.get(self.real(path) or "")
        return node if isinstance(node, Scanned) else None

    def real(self, path: str) -> str | None:
        """Return where an absolute path leads, links followed; None where nothing is."""
        parent, _, name = path.rpartition("/")
        # Many names are looked for in few directories.
        if parent not in self._directories:
            self._directories[parent] = self._walk("/", parent)
        above = self._directories[parent]
        return None if above is None else self._walk(above, name)

    def objects(self) -> Iterator[tuple[str, Scanned]]:
        """Yield every ELF file with its own path, sorted by path."""
        for path in sorted(path for path, node in self._nodes.items() if isinstance(node, Scanned)):
            yield path, self._nodes[path]  # type: ignore[misc]  # chosen by its type

    def names(self) -> Iterator[str]:
        """Yield every path that is an ELF file or leads to one by a link, sorted."""
        for path in sorted(self._nodes):
            node = self._nodes[path]
            if isinstance(node, Scanned) or (isinstance(node, tuple) and self.at(path)):
                yield path

    def _walk(self, here: str, path: str) -> str | None:
        waiting, links = path.split("/")[::-1], 0
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = here.rpartition("/")[0] or "/"
                continue
            whole = f"{here.rstrip('/')}/{name}"
            node = self._nodes.get(whole)
            if node is None:
                return None
            if not isinstance(node, tuple):
                here = whole
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            waiting += node[0].split("/")[::-1]
            here = "/" if node[0].startswith("/") else here
        return here

    def _add(self, layer: LayerScan) -> None:
        for path in layer.whiteouts:
            self._hide(path)
        for path in layer.directories:
            if self._nodes.get(path) != _DIRECTORY:
                self._nodes[path] = _DIRECTORY
        named: dict[str, _Node] = dict.fromkeys((*layer.files, *layer.texts), _FILE)
        named |= {path: (target,) for path, target in layer.links.items()}
        for path, node in (named | layer.objects).items():
            if self._nodes.get(path) == _DIRECTORY:
                self._hide(path)
            self._nodes[path] = node
            self.texts.pop(path, None)
            self.unreadable.pop(path, None)
            self.distributions.pop(path, None)
        self.texts |= layer.texts
        self.unreadable |= layer.unreadable
        self.distributions |= layer.distributions

    def _hide(self, path: str) -> None:
        below = path + "/"
        for table in (self._nodes, self.texts, self.unreadable, self.distributions):
            for hidden in [one for one in table if one == path or one.startswith(below)]:
                del table[hidden]
