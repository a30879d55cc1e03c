"""Look at an image without running it: read its file systems, or what the store knows of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from envbuild.check.preflight import components
from envbuild.check.preflight.examine import Preflight, examine
from envbuild.check.preflight.requires import judge_python
from envbuild.check.preflight.scan import (
    SCAN_FORMAT,
    LayerScan,
    Scanned,
    from_json,
    scan_host_file,
    scan_layer,
)
from envbuild.check.preflight.simulate import Simulation
from envbuild.check.preflight.tree import ImageTree
from envbuild.check.run import CHANGED
from envbuild.compat.facts import Facts
from envbuild.compat.from_image import facts_of_image
from envbuild.errors import CheckError, EnvbuildError, RequestError
from envbuild.image.around import THE_LOCK, changed_around
from envbuild.image.contents import unreadable, unreadable_layer
from envbuild.image.environment import apply
from envbuild.image.model import Manifest, Part
from envbuild.image.sif import LOCK, digest_of, read_data, read_manifest, read_sif
from envbuild.image.sifformat import Descriptor
from envbuild.image.squashfs import Squashfs
from envbuild.image.startup import EMPTY_DIRECTORIES
from envbuild.lock.model import Lock
from envbuild.lock.text import load
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.files import read_input
from envbuild.system.sealing import check_sealed_line, sealed_line

_MAX_SCAN_BYTES = 512 << 20
# Coarser than the clock of any file system that holds images.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A file system of an image; its digest is what the manifest says, and may not be so."""

    descriptor: Descriptor
    digest: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """An image whose file systems were read: what it loads is simulated from them, with and without a host.

    Attributes
    ----------
    image : Path
        The file.
    manifest : Manifest
        What it says of itself.
    scans : tuple of LayerScan
        Of its file systems, from bottom to top.
    changed : tuple of str
        Parts of it, in words, whose bytes are not those that the manifest says.
    around : tuple of str
        What lies around them and is not as it was written; see `changed_around`.
    """

    image: Path
    manifest: Manifest
    scans: tuple[LayerScan, ...]
    changed: tuple[str, ...] = ()
    around: tuple[str, ...] = ()

    def simulation(self, injected: Mapping[str, Path] | None = None) -> Simulation:
        """Return its processes.

        Parameters
        ----------
        injected : mapping of str to Path, optional
            Soname → file of the host, in a directory that the loader searches first.

        Raises
        ------
        RequestError
            A library of the host cannot be read.
        """
        return _simulation(self.manifest, self.scans, _lent(injected or {}))

    def preflight(
        self, *, injected: Mapping[str, Path] | None = None, names: Collection[str] = ()
    ) -> Preflight:
        """Return what is wrong with its processes.

        Parameters
        ----------
        injected : mapping of str to Path, optional
            As in `simulation`.
        names : collection of str, optional
            Libraries to tell of whether the image has them.

        Raises
        ------
        RequestError, ManyErrors
            A library of the host cannot be read; or the image carries no lock, or one that cannot be read.
        """
        return _examine(self.simulation(injected), self.manifest, self._lock(), names)

    def facts(self, found: Preflight) -> Facts:
        """Return its facts, as rules are judged by.

        Parameters
        ----------
        found : Preflight
            Of the image on its own libraries.

        Raises
        ------
        RequestError, ManyErrors
            It carries no lock, or one that cannot be read.
        """
        layered, variables = len(self.manifest.parts) > 1, apply(self.manifest.environment, {})
        return facts_of_image(self._lock(), found.told, layered=layered, variables=variables)

    def _lock(self) -> Lock:
        try:
            return load(read_data(self.image, LOCK), self.image)
        except EnvbuildError as error:
            if THE_LOCK not in self.around:
                raise
            problem = f"{THE_LOCK} of `{self.image.name}` is not the one that it was built with"
            raise CheckError(f"{problem}, and cannot be read: {error}", hint=CHANGED) from error


def kept_scan(store: Store, digest: str) -> LayerScan | None:
    """Return what the store knows of a file system; None where it was not read yet."""
    path = _kept(store, digest)
    return None if path is None else _read(path)


def preflight_layers(
    manifest: Manifest,
    lock: Lock,
    blobs: Sequence[tuple[Part, Path]],
    store: Store,
    known: Mapping[str, LayerScan] = MappingProxyType({}),
) -> Preflight:
    """Say what would be wrong with the processes of an image that is put together from finished layers.

    Reads none of the image, so that it can be written meanwhile.

    Parameters
    ----------
    blobs : sequence of (Part, Path)
        Each part and its squashfs, from bottom to top; compared with each other before.
    store : Store
        As in `look`.
    known : mapping of str to LayerScan
        Digest → what `kept_scan` returned before.

    Raises
    ------
    MachineError
        A squashfs cannot be read.
    """

    def read(one: tuple[Part, Path]) -> LayerScan:
        part, blob = one
        if part.digest in known:
            return known[part.digest]
        try:
            with blob.open("rb") as file:
                return _scanned(file, 0, blob.stat().st_size, store, _kept(store, part.digest))
        except (OSError, ValueError) as error:
            raise unreadable_layer(error) from error

    with ThreadPoolExecutor(host.cores()) as pool:
        scans = tuple(pool.map(read, blobs))
    return _examine(_simulation(manifest, scans, {}), manifest, lock, ())


def look(image: Path, store: Store, *, intact: bool | None = None) -> Looked:
    """Read an image's file systems, or what the store knows of them.

    Parameters
    ----------
    store : Store
        Keeps what was read of each file system under its digest, in ``scans/``;
        one that cannot be written, or holds a damaged scan, costs time alone.
    intact : bool, optional
        Whether the file systems are known to be those of the manifest; if absent they are compared
        here, unless they have been and the file is the same by its inode and times.

    Raises
    ------
    RequestError
        It is no image of ours, or was built with a file system that cannot be read.
    CheckError
        A file system of it cannot be read, and is not the one that was built.
    """
    manifest = read_manifest(image)
    partitions = read_sif(image).partitions
    named = [(part.digest, "+".join(part.layers) or part.role) for part in manifest.parts]
    more = [("", "a part that the manifest does not name")] * len(partitions)
    parts = [
        _Part(descriptor=thing, digest=digest, name=name)
        for thing, (digest, name) in zip(partitions, [*named, *more][: len(partitions)], strict=True)
    ]
    read = _scans(image, parts, store, intact)
    changed = [part.name for part, one in zip(parts, read, strict=True) if not one.same]
    changed += [f"{name} (absent)" for _, name in named[len(partitions) :]]
    return Looked(
        image=image,
        manifest=manifest,
        scans=tuple(one.scan for one in read),
        changed=tuple(changed),
        around=changed_around(image),
    )


def _simulation(manifest: Manifest, scans: Sequence[LayerScan], lent: Mapping[str, Scanned]) -> Simulation:
    variables = apply(manifest.environment, {})
    return Simulation(
        ImageTree(scans, lent),
        machine=manifest.architecture,
        library_path=[*variables.get("LD_LIBRARY_PATH", "").split(":"), *EMPTY_DIRECTORIES],
        injected=lent,
    )


def _examine(simulation: Simulation, manifest: Manifest, lock: Lock, names: Collection[str]) -> Preflight:
    python = judge_python(
        simulation.tree,
        python=manifest.python,
        architecture=manifest.architecture,
        requests=lock.requests,
    )
    return examine(simulation, lacks=manifest.lacks, names=names, python=python)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a file system holds, and whether its bytes are those that the manifest says."""

    scan: LayerScan
    same: bool


def _scans(image: Path, parts: Sequence[_Part], store: Store, intact: bool | None) -> list[_Read]:
    try:
        with image.open("rb") as file, ThreadPoolExecutor(host.cores()) as pool:
            # Unpacking and hashing leave the interpreter's lock: two cores have work.
            largest = sorted(range(len(parts)), key=lambda index: -parts[index].descriptor.size)
            futures = {index: pool.submit(_scan, file, parts[index], store, intact) for index in largest}
            return [futures[index].result() for index in range(len(parts))]
    except (OSError, ValueError) as error:
        raise unreadable(image, error) from error


def _scan(file: BinaryIO, part: _Part, store: Store, intact: bool | None) -> _Read:
    thing = part.descriptor
    # What another file system holds must neither be told of this one nor be kept under its name.
    same = _same(file, part, store) if intact is None else intact
    path = _kept(store, part.digest) if same else None
    try:
        return _Read(_scanned(file, thing.offset, thing.size, store, path), same)
    except ValueError as error:
        if same:
            raise
        problem = f"a file system of `{Path(file.name).name}` ({part.name}) is not the one that was built,"
        raise CheckError(f"{problem} and cannot be read: {error}", hint=CHANGED) from error


def _scanned(file: BinaryIO, offset: int, size: int, store: Store, path: Path | None) -> LayerScan:
    """Read what a file system holds: as it was kept, or from its bytes, which is then kept at the path."""
    kept = None if path is None else _read(path)
    if kept is not None:
        return kept
    scan = scan_layer(Squashfs(file, offset, size))
    if path is not None:
        # What one flipped bit turns into another library would decide a verdict.
        _write(store, path, sealed_line(scan.to_json()))
    return scan


def _kept(store: Store, digest: str) -> Path | None:
    try:
        name = store.blob_path(digest).name
    except RequestError:
        return None
    return store.root / "scans" / f"{SCAN_FORMAT}-{components.digest()[:12]}" / name[:2] / f"{name}.json"


def _read(path: Path) -> LayerScan | None:
    try:
        return from_json(check_sealed_line(read_input(path, limit_bytes=_MAX_SCAN_BYTES).decode()))
    except (RequestError, ValueError):
        return None


def _write(store: Store, path: Path, text: str) -> None:
    try:
        store.write(path, text)
    except EnvbuildError:
        return  # who may only read a store looks anew each time


def _same(file: BinaryIO, part: _Part, store: Store) -> bool:
    """Whether a file system is the one that the manifest says; compared once for a file that stays as it is.

    Whoever launches an image of 3 GB again and again would read all of it each time.
    """
    status = os.fstat(file.fileno())
    stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    words = [*stamp, part.descriptor.offset, part.descriptor.size, part.digest]
    mark = store.root / "scans/compared" / hashlib.sha256(json.dumps(words).encode()).hexdigest()
    try:
        # A change right after a comparison may leave the times of the file as they were.
        if mark.stat().st_mtime_ns > status.st_ctime_ns + _SETTLED_NS:
            return True
    except OSError:
        pass
    same = bool(part.digest) and digest_of(file.fileno(), part.descriptor) == part.digest
    if same:
        _write(store, mark, "")
    return same


def _lent(injected: Mapping[str, Path]) -> dict[str, Scanned]:
    """Read a host's libraries; one file under two names stays one."""
    read: dict[Path, Scanned | None] = {}
    lent = {}
    for name, path in sorted(injected.items()):
        try:
            real = path.resolve(strict=True)
            if real not in read:
                read[real] = scan_host_file(real)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RequestError(
                f"the host's library `{path}` cannot be read: {reason}",
                hint="`mpi.libraries` or `fabric.libraries` of the site file names it",
            ) from error
        found = read[real]
        if found is None:
            raise RequestError(
                f"the host's library `{path}` is no library",
                hint="`mpi.libraries` or `fabric.libraries` of the site file names a shared library itself",
            )
        lent[name] = found
    return lent
