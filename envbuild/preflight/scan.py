"""Scans an image: what its loader and its Python see, read once and kept by the image's digest.

An image is read in place: the blocks with headers, tables and metadata, not whole files.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from envbuild.elf.gpu import GpuCode, read_gpu_code
from envbuild.elf.loader import cached_names
from envbuild.elf.mpi import TELLTALES
from envbuild.elf.read import ElfObject, Symbols, TableBudget, read_elf, read_symbols
from envbuild.errors import CheckError, EnvbuildError
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.runnable import identity_of
from envbuild.image.sif import HINT_REBUILD
from envbuild.image.verify import verify_image
from envbuild.lock.model import Lock
from envbuild.preflight import components
from envbuild.preflight.compiled import Compiled, read_compiled
from envbuild.preflight.distributions import (
    METADATA,
    RECORD,
    Distribution,
    MetadataFiles,
    TooMuchMetadataError,
    libraries_of_record,
    read_distributions,
)
from envbuild.spec.validators import validator
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.reader import Entry, Squashfs
from envbuild.store.store import Store

# Incremented whenever the data of a scan, or the rules of `verify_image`, change.
SCAN_FORMAT = 10

# Where the loader and Python look.
_CONF = re.compile(r"/etc/(ld\.so\.conf|ld\.so\.conf\.d/[^/]+)|/opt/env/pyvenv\.cfg")
_MAX_CONF_BYTES = 64 << 10
CACHE = "/etc/ld.so.cache"
_MAX_CACHE_BYTES = 16 << 20
# Only the header of a distribution's metadata counts; it comes first.
_MAX_METADATA_BYTES = 1 << 20
# Of PyTorch it is 1 MiB long. A longer one is not read: which files are its distribution's is then unknown.
_MAX_RECORD_FILE_BYTES = 8 << 20
_TAG = re.compile(r"\.(cpython-[0-9]+|pypy[0-9]+|abi3)")
_PYTHON = re.compile(r"/lib/python([0-9])\.([0-9]+)/")
# What a Python module defines; its name follows.
MODULE_SYMBOL = "PyInit_"
_MAX_SEARCHED_BYTES = 64 << 20
_MAX_RECORD_BYTES = 512 << 20
# Copies of one image that are known to be whole: the built one, and those of modules.
_MAX_SIGNATURES = 64


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """An ELF file of an image."""

    elf: ElfObject
    symbols: Symbols = field(default_factory=Symbols)
    """Those of the library families that it belongs to or uses, and of a module of another Python."""
    names_in_file: tuple[str, ...] = ()
    """Names of libraries that it contains and therefore may open."""
    gpu: GpuCode | None = None
    """Its GPU code; no fat binaries if it is of an unknown form."""
    compiled: Compiled = field(default_factory=Compiled)
    """The headers that it was compiled with."""


@dataclass(frozen=True, slots=True)
class _Budgets:
    """Bytes that may be read of all files of an image."""

    tables: TableBudget = field(default_factory=TableBudget)
    constants: TableBudget = field(default_factory=TableBudget)


@dataclass(slots=True)
class FileSystemScan:
    """The contents of a file system; all paths are absolute."""

    directories: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Everything that is in none of the other tables."""
    links: dict[str, str] = field(default_factory=dict)
    """Link → target as written."""
    objects: dict[str, ScannedFile] = field(default_factory=dict)
    """ELF files, 64-bit and little-endian."""
    texts: dict[str, str] = field(default_factory=dict)
    """Text of ``ld.so.conf``, of its parts and of ``pyvenv.cfg``; the names in the loader's cache, one a
    line, if its form is known."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """ELF file → reason why it cannot be read."""
    distributions: dict[str, Distribution] = field(default_factory=dict)
    """Metadata file → its Python distribution."""
    owners: dict[str, str] = field(default_factory=dict)
    """ELF file → the metadata file of the distribution whose ``RECORD`` lists it."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A scan in the store, and the image files that were verified to have these contents, oldest first."""

    signatures: list[list[int]]
    files: FileSystemScan

    def with_signature(self, verified: list[int]) -> _Record:
        """Return the record with one more file, and without the oldest of too many."""
        return _Record([*self.signatures, verified][-_MAX_SIGNATURES:], self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageScan:
    """A scanned image."""

    image: Path
    manifest: Manifest
    lock: Lock
    files: FileSystemScan
    changed: tuple[str, ...] = ()
    """Parts that are not as they were written; see `verify_image`."""


def changed_parts(image: ImageFile, store: Store) -> tuple[str, ...]:
    """Return which parts of an image have changed since it was written; see `verify_image`.

    A file that was verified before, by its inode and times, is not read: an image of 3 GB that is launched
    often would be read each time. RequestError: envbuild did not build it.
    """
    record = _read(store, image.manifest.digest)
    if record and image.signature in record.signatures:
        return ()
    changed = verify_image(image)
    if not changed and image.is_unchanged:
        with suppress(EnvbuildError):  # the bytes are as written, also of an image that cannot be scanned
            scan_image(image, store, changed=())
    return changed


def changes_from(digest: str, path: Path | None, store: Store) -> tuple[str, ...]:
    """Return how the image at a path differs from the one with a digest, in words; see `changed_parts`."""
    if path is not None:
        try:
            with ImageFile.open(path) as image:
                if identity_of(image, store) == digest:
                    return changed_parts(image, store) if image.built_by_envbuild else ()
        except EnvbuildError as error:
            return (error.problem,)
    return (f"another image is there than {digest[:19]}",)


def scan_image(
    image: ImageFile,
    store: Store,
    *,
    changed: tuple[str, ...] | None = None,
    files: FileSystemScan | None = None,
) -> ImageScan:
    """Scan an image, or read its scan from the store, which keeps that of a verified image.

    Without `changed`, the result of `verify_image`, it is that of `changed_parts`; `files` is a scan of its
    file system, if there is one. RequestError: envbuild did not build it, or its file system's format is
    unknown. CheckError: it is damaged.
    """
    digest, signature = image.manifest.digest, image.signature
    record = _read(store, digest)
    if changed is None:
        changed = () if record and signature in record.signatures else verify_image(image)
    try:
        lock = image.lock
        if files is None:
            files = record.files if record and not changed else _scan_root(image)
    except EnvbuildError as error:
        if not changed:
            raise
        name = image.path.name
        problem = f"`{name}` was changed or damaged ({', '.join(changed)}), and cannot be read: {error}"
        raise CheckError(problem, hint=HINT_REBUILD) from error
    # A scan of other files must not be kept under this digest.
    if not changed and (record is None or signature not in record.signatures) and image.is_unchanged:
        _write(store, digest, (record or _Record([], files)).with_signature(signature))
    return ImageScan(image=image.path, manifest=image.manifest, lock=lock, files=files, changed=changed)


def scan_written(manifest: Manifest, root: Squashfs, store: Store) -> FileSystemScan:
    """Scan the file system of an image that is being written, or read its scan from the store."""
    record = _read(store, manifest.digest)
    return record.files if record else scan_file_system(root)


def _scan_root(image: ImageFile) -> FileSystemScan:
    with image.reading_root():
        return scan_file_system(image.root)


def scan_file_system(squashfs: Squashfs) -> FileSystemScan:
    """Scan a file system; SquashfsError if it is damaged. A damaged ELF file is noted in the scan."""
    try:
        return _scanned(squashfs)
    except TooMuchMetadataError as error:
        raise SquashfsError(str(error), squashfs) from error


def _scanned(squashfs: Squashfs) -> FileSystemScan:
    scan = FileSystemScan()
    metadata, budgets = MetadataFiles(), _Budgets()
    owners: dict[str, str] = {}

    def read(entry: Entry, limit_bytes: int) -> bytes:
        with squashfs.open(entry) as file:
            return file.read(limit_bytes)

    for entry in squashfs.walk():
        path = entry.path
        if entry.kind == "directory":
            scan.directories.append(path)
        elif entry.kind == "link":
            scan.links[path] = entry.target
        elif entry.kind != "file":
            scan.files.append(path)
        elif _CONF.fullmatch(path) and entry.size <= _MAX_CONF_BYTES:
            scan.texts[path] = read(entry, _MAX_CONF_BYTES).decode(errors="replace")
        elif path == CACHE and entry.size <= _MAX_CACHE_BYTES:
            names = cached_names(read(entry, _MAX_CACHE_BYTES))
            if names is None:
                scan.files.append(path)
            else:
                scan.texts[path] = "\n".join(names)
        elif not _scan_object(squashfs, entry, scan, budgets):
            scan.files.append(path)
            if METADATA.fullmatch(path):
                metadata.add(path, read(entry, _MAX_METADATA_BYTES).decode(errors="replace"))
            elif RECORD.fullmatch(path) and entry.size <= _MAX_RECORD_FILE_BYTES:
                text = read(entry, _MAX_RECORD_FILE_BYTES).decode(errors="replace")
                metadata.count(text)
                owners |= dict.fromkeys(
                    libraries_of_record(path, text), f"{path.rpartition('/')[0]}/METADATA"
                )
    scan.distributions = read_distributions(metadata.texts)
    scan.owners = {path: owner for path, owner in owners.items() if path in scan.objects}
    return scan


def scan_host_file(path: Path) -> ScannedFile | None:
    """Scan a library of the host; None if it is no ELF file, ValueError if it is malformed."""
    with path.open("rb") as file:
        return _scan_elf(file, str(path), path.stat().st_size, _Budgets())


def _scan_object(squashfs: Squashfs, entry: Entry, scan: FileSystemScan, budgets: _Budgets) -> bool:
    """Scan a file that the loader may load; return whether it is an ELF file."""
    if entry.size < 64 or not (".so" in entry.path.rpartition("/")[2] or entry.mode & 0o111):
        return False
    with squashfs.open(entry) as file:
        try:
            scanned = _scan_elf(file, entry.path, entry.size, budgets)
        except ValueError as error:
            scan.unreadable[entry.path] = str(error)
            return False
    if scanned is not None:
        scan.objects[entry.path] = scanned
    return scanned is not None


def _scan_elf(file: BinaryIO, path: str, size_bytes: int, budgets: _Budgets) -> ScannedFile | None:
    budget = budgets.tables
    elf = read_elf(file, budget)
    if elf is None:
        return None
    name = path.rpartition("/")[2]
    table = components.components()
    tag, python = _TAG.search(name), _PYTHON.search(path)
    own_tag = f"cpython-{python[1]}{python[2]}" if python else ""
    # A file with the tag of another Python is an extension module of it only if it has this symbol.
    prefixes = [MODULE_SYMBOL] if tag and tag[1] != own_tag else []
    for family in table.families.values():
        if family.symbols and family.concerns([name, elf.soname, *elf.needed]):
            prefixes += family.symbols
    # With the prefixes of its family come the telltales of MPI's ABI.
    symbols = read_symbols(file, (*prefixes, *TELLTALES), budget) if prefixes else Symbols()
    rules = (rule for rule in table.dlopens if rule.name_in_file and rule.opens(name, elf.soname))
    sought = [opened for rule in rules for opened in rule.names]
    written: tuple[str, ...] = ()
    if sought and size_bytes <= _MAX_SEARCHED_BYTES:
        file.seek(0)
        content = file.read()
        written = tuple(opened for opened in sought if b"\0" + opened.encode() + b"\0" in content)
    compiled = read_compiled(file, path, elf, budget, budgets.constants)
    return ScannedFile(elf, symbols, written, _gpu_code(file, budget), compiled)


def _gpu_code(file: BinaryIO, budget: TableBudget) -> GpuCode | None:
    try:
        return read_gpu_code(file, budget)
    except ValueError:
        # The loader takes the file all the same; only its GPU code is unknown.
        return GpuCode(0, {})


def _record_name(digest: str) -> str:
    hexadecimal = digest.removeprefix("sha256:")
    return f"scans/{SCAN_FORMAT}-{components.digest()[:12]}/{hexadecimal[:2]}/{hexadecimal}.json"


def _read(store: Store, digest: str) -> _Record | None:
    text = store.read_sealed(_record_name(digest), limit_bytes=_MAX_RECORD_BYTES)
    return None if text is None else validator(_Record).validate_json(text)


def _write(store: Store, digest: str, record: _Record) -> None:
    text = json.dumps(asdict(record), default=sorted, sort_keys=True, separators=(",", ":"))
    try:
        # Sealed: a flipped bit would turn a library into another.
        store.write_sealed(_record_name(digest), text)
    except EnvbuildError:
        return  # the next call scans the image anew
