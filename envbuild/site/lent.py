"""Which files of a host come into an image, with all that they need; and what forbids it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.elf.loader import Closure, Loaded, closure
from envbuild.elf.read import ElfObject
from envbuild.errors import RequestError
from envbuild.site.files import HostTree, host_search
from envbuild.spec.site import MpiAbi

# They belong to the image's own loader, or a process would hold two C or C++ libraries.
_NEVER = re.compile(
    r"(ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|nsl|nss_.*|anl|BrokenLocale|thread_db)|libgcc_s|libstdc\+\+)\.so\.[0-9]+"
)
_SYSTEM = re.compile(r"(/usr)?/lib(64|/[a-z0-9_]+-linux-gnu)?/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSide:
    """What of an image decides what it can take from a host."""

    label: str
    """For messages."""
    family: str
    """Whose launcher its MPI has (``mpich``, ``openmpi``, ``intel-mpi``)."""
    abis: tuple[MpiAbi, ...]
    """Those that its programs and extensions ask for."""
    glibc: str
    """Its C library's version."""
    library_path: str
    """LD_LIBRARY_PATH as its own environment makes it."""
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a library that its loader finds → symbol versions that it defines."""
    bound_hard: tuple[str, ...] = ()
    """Files whose DT_RPATH leads to the image's MPI."""


class LentFiles:
    """Gathers what is bound: name → file of the host.

    Parameters
    ----------
    search : tuple of str
        Where what the host's libraries need is found, before the host's defaults.
    companions : tuple of str
        Files and directories that are bound where they are.
    machine : str
        ``amd64`` or ``arm64``.
    """

    def __init__(
        self,
        image: ImageSide,
        host: HostTree,
        *,
        search: tuple[str, ...],
        companions: tuple[str, ...],
        machine: str,
    ) -> None:
        self.found: dict[str, str] = {}
        self._image, self._host, self._companions = image, host, companions
        self._search = host_search(search, machine)

    def add_named(self, path: str, found: ElfObject) -> None:
        """Take a library that the site names, under its file's name and its soname, and what it needs."""
        for name in {Path(path).name, found.soname} - {""}:
            self.found[name] = path
        loads = closure(path, self._host, self._search)
        if loads.missing:
            first = loads.missing[0]
            raise missing(
                f"{first.path} needs {first.name}, which is nowhere on this host",
                rule="HOST.injected-closure",
            )
        self._take(loads)

    def add_needs(self, path: str) -> None:
        """Take what a library needs that is opened by itself, where the host has all of it."""
        if self._host.lookup(path) is None:
            return
        loads = closure(path, self._host, self._search)
        # The host cannot load it either: a provider of hardware that is not here.
        if not loads.missing:
            self._take(loads)

    def _take(self, loads: Closure) -> None:
        self._check_versions(loads.objects[0])
        waiting, seen = [loads.objects[0]], {id(loads.objects[0])}
        for asking in waiting:
            for name, needed in sorted(asking.needs.items()):
                if _NEVER.fullmatch(name) or id(needed) in seen:
                    continue
                seen.add(id(needed))
                if self._has_own(name, needed, loads) or self._bound_already(needed):
                    continue
                self.found.setdefault(name, needed.path)
                self._check_versions(needed)
                waiting.append(needed)

    def _has_own(self, name: str, needed: Loaded, loads: Closure) -> bool:
        """Whether a library of the host's distribution is in the image, with all versions that are asked."""
        if not _SYSTEM.fullmatch(needed.path) or name not in self._image.provides:
            return False
        asked = {version for each in loads.objects for version in each.found.versions_needed.get(name, ())}
        return asked <= set(self._image.provides[name])

    def _bound_already(self, needed: Loaded) -> bool:
        """Whether it lies in a companion, and what asks for it finds it there by itself."""
        inside = any(needed.path.startswith(f"{path}/") for path in self._companions)
        by_itself = needed.rule in ("DT_RPATH", "DT_RUNPATH", "path")
        return inside and by_itself and needed.parent is not None and self._in_companion(needed.parent.path)

    def _in_companion(self, path: str) -> bool:
        return path not in self.found.values() and any(
            path.startswith(f"{companion}/") for companion in self._companions
        )

    def _check_versions(self, loaded: Loaded) -> None:
        for name, versions in sorted(loaded.found.versions_needed.items()):
            if _NEVER.fullmatch(name) is None:
                continue
            for version in _too_new(name, versions, self._image):
                kind = version.partition("_")[0]
                raise RequestError(
                    f"{kind}.host-library-ceiling: {loaded.path} of the host needs {version} of {name}, and "
                    f"`{self._image.label}` has {self._has(kind)}",
                    hint="run on the image's own MPI, or build the image on a newer base",
                )

    def _has(self, kind: str) -> str:
        return f"glibc {self._image.glibc}" if kind == "GLIBC" else "an older one"


def named(host: HostTree, path: str) -> ElfObject:
    """Return a library that a site names.

    Raises
    ------
    RequestError
        It is not there, or is none.
    """
    found = host.lookup(path)
    if found is None:
        raise missing(f"{path}, which the site names, is not there or is no library")
    return found


def missing(what: str, *, rule: str = "HOST.binds-exist") -> RequestError:
    """Return the refusal of a host that lacks what its site file names."""
    return RequestError(
        f"{rule}: {what}",
        hint="the host has changed since its site file was written: mend the file",
    )


def _too_new(name: str, versions: tuple[str, ...], image: ImageSide) -> Iterator[str]:
    has = _numbers(image.glibc)
    for version in sorted(versions, key=_numbers):
        if version.startswith("GLIBC_"):
            numbers = _numbers(version)
            if numbers and numbers > has:
                yield version
        elif name in image.provides and version not in image.provides[name]:
            yield version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"[0-9]+", version))
