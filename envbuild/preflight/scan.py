"""What the loader would see of one file system: read once, kept as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.elf.cache import cached_names
from envbuild.elf.gpu import GpuCode, read_gpu_code
from envbuild.elf.mpi import TELLTALES
from envbuild.elf.read import ElfObject, Symbols, read_elf, read_symbols
from envbuild.preflight import components as known
from envbuild.preflight.installed import TELLS, Installed, read_installed, worth_keeping
from envbuild.squashfs.reader import Entry, Squashfs

# Raised whenever a scan sees more, or writes it otherwise.
SCAN_FORMAT = 5

# What says where the loader, and Python, look.
_CONF = re.compile(r"/etc/(ld\.so\.conf|ld\.so\.conf\.d/[^/]+)|/opt/env/pyvenv\.cfg")
_MAX_CONF_BYTES = 64 << 10
CACHE = "/etc/ld.so.cache"
_MAX_CACHE_BYTES = 16 << 20
# Of a distribution's metadata the header counts, which comes first.
_MAX_METADATA_BYTES = 1 << 20
_OBJECTS = ("objects", "distributions")
_MAX_SEARCHED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Scanned:
    """An ELF file of an image."""

    elf: ElfObject
    """What the loader wants to know of it."""
    symbols: Symbols
    """Those that belong to a family it has to do with."""
    written: tuple[str, ...] = ()
    """Names of libraries that it opens if they are written in it, and are."""
    gpu: GpuCode | None = None
    """Its code for GPUs; without any fat binary where that is of a form that is not known."""


@dataclass(slots=True)
class LayerScan:
    """What one file system holds; all paths are absolute."""

    directories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    whiteouts: list[str] = field(default_factory=list)
    """Directories, what is neither of the others, and what hides a path of the layers below."""
    links: dict[str, str] = field(default_factory=dict)
    """Link → target as written."""
    objects: dict[str, Scanned] = field(default_factory=dict)
    """ELF files, 64-bit and little-endian."""
    texts: dict[str, str] = field(default_factory=dict)
    """Of ``ld.so.conf``, and of the ``pyvenv.cfg`` of the image's Python; of the loader's cache the
    names that it knows, one a line, where its form is known."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """ELF file → what is wrong with it."""
    distributions: dict[str, Installed] = field(default_factory=dict)
    """Metadata file → the Python distribution that it tells of."""

    def to_json(self) -> str:
        """Return it as one line that `from_json` reads."""
        data = {
            "format": SCAN_FORMAT,
            "components": known.digest(),
            **{name: getattr(self, name) for name in self.__slots__ if name not in _OBJECTS},
            "distributions": {
                path: [one.requires, one.name, one.version, one.python]
                for path, one in self.distributions.items()
            },
            "objects": {
                path: [
                    asdict(found.elf),
                    sorted(found.symbols.undefined),
                    sorted(found.symbols.defined),
                    found.written,
                    asdict(found.gpu) if found.gpu else None,
                ]
                for path, found in self.objects.items()
            },
        }
        return json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n"


def from_json(text: str) -> LayerScan | None:
    """Read what `LayerScan.to_json` wrote; None for what is damaged, or of another format or table."""
    try:
        data = json.loads(text)
        if data["format"] != SCAN_FORMAT or data["components"] != known.digest():
            return None
        scan = LayerScan(
            directories=_texts(data["directories"]),
            files=_texts(data["files"]),
            whiteouts=_texts(data["whiteouts"]),
            links=_pairs(data["links"]),
            texts=_pairs(data["texts"]),
            unreadable=_pairs(data["unreadable"]),
        )
        for path, (elf, undefined, defined, written, gpu) in data["objects"].items():
            symbols = Symbols(frozenset(_texts(undefined)), frozenset(_texts(defined)))
            scan.objects[path] = Scanned(_elf(elf), symbols, tuple(_texts(written)), _gpu(gpu))
        for path, (requires, *words) in data["distributions"].items():
            name, version, python = _texts(words)
            scan.distributions[path] = Installed(name, version, tuple(_texts(requires)), python)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return scan


def scan_layer(layer: Squashfs) -> LayerScan:
    """Read a file system.

    Raises
    ------
    ValueError
        It is damaged. An ELF file that is, is told in the scan.
    """
    scan = LayerScan()
    metadata = {}
    for entry in layer.walk():
        if entry.kind == "directory":
            scan.directories.append(entry.path)
        elif entry.kind == "whiteout":
            scan.whiteouts.append(entry.path)
        elif entry.kind == "link":
            scan.links[entry.path] = entry.target
        elif entry.kind == "file" and _CONF.fullmatch(entry.path) and entry.size <= _MAX_CONF_BYTES:
            with layer.open(entry) as file:
                scan.texts[entry.path] = file.read().decode(errors="replace")
        elif entry.path == CACHE and (names := _cached(layer, entry)) is not None:
            scan.texts[CACHE] = "\n".join(names)
        elif not (_may_be_loaded(entry) and _scan_file(layer, entry, scan)):
            scan.files.append(entry.path)
            if entry.kind == "file" and TELLS.fullmatch(entry.path):
                with layer.open(entry) as file:
                    text = file.read(_MAX_METADATA_BYTES).decode(errors="replace")
                metadata[entry.path] = worth_keeping(entry.path, text)
    scan.distributions = read_installed(metadata)
    return scan


def scan_host_file(path: Path) -> Scanned | None:
    """Read a library of the host that is lent to the image; None for what is no ELF file.

    Raises
    ------
    ValueError
        It is malformed.
    OSError
        It cannot be read.
    """
    with path.open("rb") as file:
        elf = read_elf(file)
        return None if elf is None else _scanned(file, path.name, elf, path.stat().st_size)


def _may_be_loaded(entry: Entry) -> bool:
    return entry.size >= 64 and (".so" in entry.path.rpartition("/")[2] or bool(entry.mode & 0o111))


def _cached(layer: Squashfs, entry: Entry) -> tuple[str, ...] | None:
    if entry.kind != "file" or entry.size > _MAX_CACHE_BYTES:
        return None
    with layer.open(entry) as file:
        return cached_names(file.read())


def _scan_file(layer: Squashfs, entry: Entry, scan: LayerScan) -> bool:
    with layer.open(entry) as file:
        try:
            elf = read_elf(file)
            if elf is not None:
                scan.objects[entry.path] = _scanned(file, entry.path.rpartition("/")[2], elf, entry.size)
        except ValueError as error:
            scan.unreadable[entry.path] = str(error)
            return False
    return elf is not None


def _scanned(file: BinaryIO, name: str, elf: ElfObject, size: int) -> Scanned:
    table = known.components()
    prefixes: list[str] = []
    for family in table.families.values():
        if family.symbols and family.concerns([name, elf.soname, *elf.needed]):
            prefixes += family.symbols
    # With the prefixes of its family come the telltales of MPI's ABI.
    symbols = read_symbols(file, (*prefixes, *TELLTALES)) if prefixes else Symbols(frozenset(), frozenset())
    wanted = [
        each
        for row in table.opened
        if row.written and any(re.fullmatch(row.by, one) for one in (name, elf.soname))
        for each in row.names
    ]
    written: tuple[str, ...] = ()
    if wanted and size <= _MAX_SEARCHED_BYTES:
        file.seek(0)
        content = file.read()
        written = tuple(one for one in wanted if b"\0" + one.encode() + b"\0" in content)
    return Scanned(elf, symbols, written, _gpu_code(file))


def _gpu_code(file: BinaryIO) -> GpuCode | None:
    try:
        return read_gpu_code(file)
    except ValueError:
        # The loader takes the file all the same: what it holds for GPUs is unknown, and that is all.
        return GpuCode(0, {})


def _elf(data: Mapping[str, Any]) -> ElfObject:
    needs = {name: tuple(_texts(versions)) for name, versions in data["versions_needed"].items()}
    lists = {name: tuple(_texts(data[name])) for name in ("needed", "rpath", "runpath", "versions_defined")}
    return ElfObject(**{**data, **lists, "versions_needed": needs})


def _gpu(data: object) -> GpuCode | None:
    if data is None:
        return None
    if not isinstance(data, dict) or not all(type(count) is int for count in data["held"].values()):
        raise ValueError("not a file's GPU code")
    return GpuCode(int(data["binaries"]), dict(data["held"]))


def _texts(data: object) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(each, str) for each in data):
        raise ValueError("not a list of texts")
    return data


def _pairs(data: object) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(each, str) for each in data.values()):
        raise ValueError("not a table of texts")
    return data
