"""The host's own file system, as the loader simulation reads it."""

from __future__ import annotations

import os
from pathlib import Path

from envbuild.elf.loader import Search, cache_directories, default_directories
from envbuild.elf.mpi import TELLTALES, mpi_abi
from envbuild.elf.read import ElfObject, read_elf, read_symbols
from envbuild.spec.site import MpiAbi
from envbuild.system.files import list_directory, open_regular

_CONF = "/etc/ld.so.conf"
_MAX_CONF_BYTES = 1 << 16


class HostTree:
    """The libraries of this machine: what is at a path, each file read once.

    Parameters
    ----------
    root : Path
        Where the file system begins.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._known: dict[str, ElfObject | None] = {}

    def lookup(self, path: str) -> ElfObject | None:
        """Return the ELF file at an absolute path, links followed; None for anything else.

        A damaged or unreadable file is none that the loader could take.
        """
        real = os.path.realpath(self._root / path.lstrip("/"))
        if real not in self._known:
            self._known[real] = _read(real)
        return self._known[real]


def _read(path: str) -> ElfObject | None:
    try:
        with open_regular(Path(path)) as file:
            return read_elf(file)
    except (OSError, ValueError):
        return None


def abi_of(path: str, found: ElfObject) -> MpiAbi | None:
    """Return the MPI ABI of a library by its symbols; None for no MPI or one that cannot be read."""
    try:
        with open_regular(Path(path)) as file:
            return mpi_abi(found.soname, read_symbols(file, TELLTALES).defined)
    except (OSError, ValueError):
        return None


def host_search(directories: tuple[str, ...], machine: str, root: Path = Path("/")) -> Search:
    """Return where this machine's loader looks.

    Parameters
    ----------
    directories : tuple of str
        What comes before its cache (a module's LD_LIBRARY_PATH).
    machine : str
        ``amd64`` or ``arm64``.
    root : Path
        Where the file system begins.
    """
    return Search(
        library_path=directories,
        cache=cache_directories(_loader_settings(root)),
        default=default_directories(machine),
    )


def _loader_settings(root: Path) -> dict[str, str]:
    names = [f"{_CONF}.d/{name}" for name in list_directory(root / f"{_CONF}.d".lstrip("/"))]
    texts = {}
    for name in (_CONF, *sorted(names)):
        try:
            texts[name] = (root / name.lstrip("/")).read_text(errors="replace")[:_MAX_CONF_BYTES]
        except OSError:
            continue
    return texts


def libraries_below(path: str) -> tuple[str, ...]:
    """Return the shared objects at or below a path, sorted: what a library may open by itself."""
    if Path(path).is_file():
        return (path,)
    found = []
    for directory, below, names in os.walk(path):
        below.sort()
        found += [f"{directory}/{name}" for name in sorted(names) if ".so" in name]
    return tuple(found)
