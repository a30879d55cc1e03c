"""The facts of an image that make it a base, read from its layers without unpacking them to a disk.

Of each layer, from bottom to top, the few entries are kept that say what the image is.

Source: OCI image specification 1.1 (layers and whiteouts), os-release(5), Debian policy 5 (control files).
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from envbuild.errors import Location, RequestError
from envbuild.spec.base import BasePython, ImageFacts
from envbuild.spec.model import DEBIAN_NAME, NAME, first_problem
from envbuild.spec.yamlfile import shorten
from envbuild.system import process
from envbuild.system.links import follow
from envbuild.system.tarmembers import (
    MAX_ROOT_BYTES,
    MAX_ROOT_ENTRIES,
    TarMembers,
    UnsafeArchiveError,
    archive_members,
)

# Of all layers together; images have some thousand.
_MAX_KEPT = 20_000
_MAX_DEPTH = 128
_MAX_TEXT_BYTES = 16 << 20
_MAX_LIBRARY_BYTES = 8 << 20
_OPAQUE = ".wh..wh..opq"
_WHITEOUT = ".wh."
_STATUS = "/var/lib/dpkg/status"
_RELEASES = ("/etc/os-release", "/usr/lib/os-release")
_LIBRARIES = re.compile(r"/(?:usr/)?lib(?:64)?(?:/(?:x86_64|aarch64)-linux-gnu)?")
_C_LIBRARY = re.compile(r"libc(?:\.so\.6|-2\.[0-9]+\.so)")
# How glibc's library introduces itself, and what follows.
_BANNER, _RELEASE = b"GNU C Library ", re.compile(rb"[^\n]{0,200}?version (2\.[0-9]{1,3})\b")
_MAX_BANNERS = 16
_MUSL = re.compile(r"/(?:usr/)?lib/ld-musl-[a-z0-9_]+\.so\.1")
_PYTHON = re.compile(r"python[0-9.]*")
_PYTHONS_ELSEWHERE = re.compile(r"/(?:usr/local|opt/[a-z0-9_-]+)/bin/python3")
# Links on the way to these: of merged directories, alternatives and versions.
_WITH_LINKS = frozenset(("/", "/usr", "/etc", "/var", "/var/lib", "/usr/bin", "/bin", "/etc/alternatives"))
_TOOLKITS = (
    (re.compile(r"/usr/local/cuda-([0-9]{1,3}\.[0-9]{1,3})"), "CUDA"),
    (re.compile(r"/opt/rocm-([0-9]{1,3}\.[0-9]{1,3})(?:\.[0-9]{1,3})?"), "ROCm"),
)
_MPI = re.compile(r"libmpi\.so\.(?:12|20|40)")
_HINT_EXTEND = "`envbuild extend` adds packages to an image of any kind; its Python stays as it is"
_HINT_DAMAGED = "push or copy it again, as `skopeo copy` or `podman push` does"


def read_facts(
    layers: Sequence[Path],
    name: str,
    at: Location | None,
    advanced: Callable[[int], None] = lambda _count: None,
) -> ImageFacts:
    """Read the facts of an image from the files of its layers, from bottom to top.

    `advanced` is called with the number of their bytes that each step reads. RequestError: a layer is damaged
    or unsafe, or the image cannot be a base.
    """
    root = _Root()
    left_bytes = MAX_ROOT_BYTES
    for layer in layers:
        try:
            with archive_members(layer, limit_bytes=left_bytes, advanced=advanced) as members:
                root.add_layer(members)
                left_bytes = max(left_bytes - members.offset, 0)
        except UnsafeArchiveError as error:
            problem = f"a layer of `{name}` is not used: {error} (sha256:{layer.stem[:12]}…)"
            raise RequestError(problem, at=at, hint=_HINT_DAMAGED) from None
    return root.facts(name, at)


class _Node:
    """A path of a root at or below which something is kept."""

    __slots__ = ("below", "content", "layer")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.content: str | bytes | None = None
        """Target of a link, or bytes of a file that is read; None for others, whose names alone count."""
        self.layer = 0
        """The topmost layer that has it, or something below it."""


class _Root:
    """The entries of a root that say what it is."""

    def __init__(self) -> None:
        self._root = _Node()
        self._layer = 0
        self._entries = 0
        self._kept = 0
        self._opaque: set[str] = set()  # directories of this layer

    def add_layer(self, members: TarMembers) -> None:
        """Lay a layer over those before; UnsafeArchiveError if it leads out of the root, or is too large."""
        self._layer += 1
        self._opaque = set()
        for member in members:
            if process.is_shutting_down():
                raise KeyboardInterrupt
            self._entries += 1
            if self._entries > MAX_ROOT_ENTRIES:
                raise UnsafeArchiveError(f"more than {MAX_ROOT_ENTRIES} entries")
            path = _path_in_root(member.name)
            directory, _, last = path.rpartition("/")
            if last == _OPAQUE:
                self._uncover(directory)
            elif last.startswith(_WHITEOUT):
                self._remove(f"{directory}/{last.removeprefix(_WHITEOUT)}")
            else:
                self._add(path, member, members)

    def _add(self, path: str, member: tarfile.TarInfo, members: TarMembers) -> None:
        node = self._node(path)
        if node is not None and (node.content is not None or not member.isdir()):
            if node.layer == self._layer:
                raise UnsafeArchiveError(f"`{shorten(path)}` is there twice")
            self._remove(path)
        directory = path.rpartition("/")[0] or "/"
        if member.issym():
            if directory in _WITH_LINKS or _is_read(path) or _is_named(path):
                self._keep(path, member.linkname or ".")
        elif member.islnk():
            other = self._node(_path_in_root(member.linkname))
            if other is not None or _is_named(path):
                self._keep(path, other.content if other is not None else None)
        elif member.isreg() and _is_read(path):
            is_library = _C_LIBRARY.fullmatch(path.rpartition("/")[2])
            if member.size > (_MAX_LIBRARY_BYTES if is_library else _MAX_TEXT_BYTES):
                raise UnsafeArchiveError(f"`{shorten(path)}` is larger than such a file can be")
            with members.open(member) as content:
                data = content.read()
            self._keep(path, _glibc_version(data) if is_library else data)
        elif _is_named(path):
            self._keep(path, None)

    def _keep(self, path: str, content: str | bytes | None) -> None:
        self._kept += 1
        if self._kept > _MAX_KEPT:
            raise UnsafeArchiveError(f"more than {_MAX_KEPT} libraries and links")
        node = self._root
        for part in path.split("/")[1:]:
            node = node.below.setdefault(part, _Node())
            node.layer = self._layer
        node.content = content

    def _node(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for part in path.split("/")[1:]:
            node = node.below.get(part) if node is not None else None
        return node

    def _remove(self, path: str) -> None:
        """Remove what the layers below have at a path, and below it."""
        directory, _, last = path.rpartition("/")
        parent = self._node(directory)
        node = parent.below.get(last) if parent is not None else None
        if parent is not None and node is not None and node.layer != self._layer:
            del parent.below[last]

    def _uncover(self, directory: str) -> None:
        """Remove what the layers below have in a directory."""
        if directory in self._opaque:
            raise UnsafeArchiveError(f"`{shorten(directory)}/{_OPAQUE}` is there twice")
        self._opaque.add(directory)
        nodes = [self._node(directory)]
        while nodes:
            if (node := nodes.pop()) is not None:
                node.below = {name: below for name, below in node.below.items() if below.layer == self._layer}
                nodes += node.below.values()

    # Facts

    def facts(self, name: str, at: Location | None) -> ImageFacts:
        """Return the facts; RequestError if it cannot be a base."""
        release = self._release()
        if not release:
            problem = f"`{name}` has no os-release: it is not the root of a distribution"
            raise RequestError(problem, at=at, hint="name an image with a distribution and its Python")
        python = self._python(name, at)
        glibc = self._glibc(name, at)
        distribution, version = release.get("ID", "linux").lower(), release.get("VERSION_ID", "0")
        suite = release.get("VERSION_CODENAME", "")
        try:
            return ImageFacts(
                distribution=distribution,
                suite=suite if re.fullmatch(NAME, suite) else f"{distribution}-{version}".lower(),
                version=version,
                glibc=glibc,
                python=python,
                packages=tuple(_debian_packages(self._text(_STATUS))),
                brings=tuple(self._brings()),
            )
        except ValidationError as error:
            problem = f"`{name}` does not say what it is: {first_problem(error)}"
            raise RequestError(problem, at=at, hint="its /etc/os-release has to name it") from None

    def _look(self, path: str) -> str | None:
        node = self._node(path)
        if node is None:
            return None
        return node.content if isinstance(node.content, str) else ""

    def _text(self, path: str) -> bytes:
        node = self._node(follow(path, self._look)[0])
        return node.content if node is not None and isinstance(node.content, bytes) else b""

    def _release(self) -> dict[str, str]:
        text = next(filter(None, map(self._text, _RELEASES)), b"")
        pairs = re.findall(
            r"^([A-Z_]+)=(['\"]?)([^'\"\n]*)\2$", text.decode("utf-8", "replace"), re.MULTILINE
        )
        return {key: value for key, _, value in pairs}

    def _python(self, name: str, at: Location | None) -> BasePython:
        path, missing = follow("/usr/bin/python3", self._look)
        version = re.fullmatch(r"python(3\.[0-9]+)", posixpath.basename(path))
        if missing or version is None:
            other = next((file for file in sorted(self._named()) if _PYTHONS_ELSEWHERE.fullmatch(file)), "")
            has = f"; it has `{other}`, which is not that of its distribution" if other else ""
            raise RequestError(f"`{name}` has no /usr/bin/python3{has}", at=at, hint=_HINT_EXTEND)
        minor = int(version[1].partition(".")[2])
        try:
            return BasePython(version=version[1], abi=f"cp3{minor}" + ("m" if minor == 7 else ""))
        except ValidationError:
            problem = f"the Python of `{name}` is {version[1]}, and a base has 3.7 or newer"
            raise RequestError(problem, at=at, hint=_HINT_EXTEND) from None

    def _glibc(self, name: str, at: Location | None) -> str:
        for path in sorted(self._named(), reverse=True):
            is_library = _C_LIBRARY.fullmatch(posixpath.basename(path))
            if is_library and (version := self._text(path)):
                return version.decode("ascii", "replace")
        reason = "its C library is musl" if any(map(_MUSL.fullmatch, self._named())) else "it has no glibc"
        problem = f"`{name}` cannot be a base: {reason}"
        raise RequestError(problem, at=at, hint="name an image of a distribution with glibc")

    def _named(self) -> set[str]:
        """Return all paths that are kept, and the directories around them."""
        named: set[str] = set()
        nodes = [("", self._root)]
        while nodes:
            path, node = nodes.pop()
            below = [(f"{path}/{name}", child) for name, child in node.below.items()]
            named.update(path for path, _ in below)
            nodes += below
        return named

    def _brings(self) -> Iterable[str]:
        named = self._named()
        for pattern, toolkit in _TOOLKITS:
            releases = {match[1] for path in named if (match := pattern.fullmatch(path))}
            yield from (f"{toolkit} {release}" for release in sorted(releases))
        libraries = {posixpath.basename(path) for path in named}
        yield from (f"MPI ({library})" for library in sorted(libraries) if _MPI.fullmatch(library))


def _path_in_root(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise UnsafeArchiveError(f"`{shorten(name)}` leads out of the root")
    if len(parts) > _MAX_DEPTH:
        raise UnsafeArchiveError(f"`{shorten(name)}` is too deep")
    return "".join(f"/{part}" for part in parts)


def _is_read(path: str) -> bool:
    directory, _, last = path.rpartition("/")
    is_c_library = _C_LIBRARY.fullmatch(last) and _LIBRARIES.fullmatch(directory)
    return path in (*_RELEASES, _STATUS) or bool(is_c_library)


def _is_named(path: str) -> bool:
    """Whether a path says something by its name alone."""
    directory, _, last = path.rpartition("/")
    return bool(
        (directory in ("/usr/bin", "/bin") and _PYTHON.fullmatch(last))
        or _PYTHONS_ELSEWHERE.fullmatch(path)
        or _MUSL.fullmatch(path)
        or _MPI.fullmatch(last)
        or any(pattern.fullmatch(path) for pattern, _ in _TOOLKITS)
    )


def _glibc_version(library: bytes) -> bytes:
    """Return the version in the bytes of a C library; empty if it is not glibc."""
    begin = -len(_BANNER)
    for _ in range(_MAX_BANNERS):
        begin = library.find(_BANNER, begin + len(_BANNER))
        if begin < 0:
            return b""
        if match := _RELEASE.match(library, begin + len(_BANNER)):
            return match[1]
    return b""


def _debian_packages(status: bytes) -> list[str]:
    """Return the names of the installed packages in dpkg's list, sorted."""
    names = set()
    for paragraph in re.split(rb"\n[ \t]*\n", status):
        fields = dict(re.findall(rb"^(Package|Status):([^\n]*)$", paragraph, re.MULTILINE))
        if fields.get(b"Status", b"").split()[-1:] == [b"installed"]:
            names.add(fields.get(b"Package", b"").strip().decode("utf-8", "replace"))
    return sorted(name for name in names if re.fullmatch(DEBIAN_NAME, name))
