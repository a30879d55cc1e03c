"""Look at an image without running it: read its file systems, or what the store knows of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.check.preflight import components
from envbuild.check.preflight.examine import Preflight, examine
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
from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.image.environment import apply
from envbuild.image.model import Manifest
from envbuild.image.sif import read_manifest, read_sif
from envbuild.image.sifformat import Descriptor
from envbuild.image.squashfs import Squashfs
from envbuild.image.startup import EMPTY_DIRECTORIES
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.files import read_input

_READ_BYTES = 1 << 20
_MAX_SCAN_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A file system of an image; its digest is what the manifest says, and may not be so."""

    descriptor: Descriptor
    digest: str


def preflight(
    image: Path,
    store: Store,
    *,
    injected: Mapping[str, Path] | None = None,
    intact: bool | None = None,
    names: Collection[str] = (),
) -> tuple[Manifest, Preflight]:
    """Look at an image.

    Parameters
    ----------
    store : Store
        Keeps what was read of each file system under its digest, in ``scans/``;
        one that cannot be written, or holds a damaged scan, costs time alone.
    injected : mapping of str to Path, optional
        Soname → file of the host, in a directory that the loader searches first.
    intact : bool, optional
        Whether the file systems are known to be those of the manifest; compared here if absent.
    names : collection of str, optional
        Libraries to tell of whether the image has them.

    Raises
    ------
    RequestError
        It is no image of ours, a file system of it is damaged, or a library of the host cannot be read.
    """
    manifest, simulation = simulate(image, store, injected=injected, intact=intact)
    return manifest, examine(simulation, lacks=manifest.lacks, names=names)


def simulate(
    image: Path,
    store: Store,
    *,
    injected: Mapping[str, Path] | None = None,
    intact: bool | None = None,
) -> tuple[Manifest, Simulation]:
    """Return an image's processes; parameters and errors are those of `preflight`."""
    manifest = read_manifest(image)
    lent = _lent(injected or {})
    partitions = read_sif(image).partitions
    digests = [part.digest for part in manifest.parts] + [""] * len(partitions)
    parts = [
        _Part(descriptor=thing, digest=digest)
        for thing, digest in zip(partitions, digests[: len(partitions)], strict=True)
    ]
    tree = ImageTree(_scans(image, parts, store, intact), lent)
    variables = apply(manifest.environment, {})
    simulation = Simulation(
        tree,
        machine=manifest.architecture,
        library_path=[*variables.get("LD_LIBRARY_PATH", "").split(":"), *EMPTY_DIRECTORIES],
        injected=bool(lent),
    )
    return manifest, simulation


def _scans(image: Path, parts: Sequence[_Part], store: Store, intact: bool | None) -> list[LayerScan]:
    try:
        with image.open("rb") as file, ThreadPoolExecutor(host.cores()) as pool:
            # Unpacking and hashing leave the interpreter's lock: two cores have work.
            largest = sorted(range(len(parts)), key=lambda index: -parts[index].descriptor.size)
            futures = {index: pool.submit(_scan, file, parts[index], store, intact) for index in largest}
            return [futures[index].result() for index in range(len(parts))]
    except OSError as error:
        raise RequestError(f"`{image}` cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(
            f"a file system of `{image.name}` cannot be read: {error}",
            at=Location(path=image),
            hint="build the image again, or copy it again from where it came",
        ) from error


def _scan(file: BinaryIO, part: _Part, store: Store, intact: bool | None) -> LayerScan:
    thing = part.descriptor
    # What another file system holds must neither be told of this one nor be kept under its name.
    same = _is(file, part) if intact is None else intact
    path = _kept(store, part.digest) if same else None
    if path is not None:
        kept = _read(path)
        if kept is not None:
            return kept
    scan = scan_layer(Squashfs(file, thing.offset, thing.size))
    if path is not None:
        _write(store, path, scan)
    return scan


def _kept(store: Store, digest: str) -> Path | None:
    try:
        name = store.blob_path(digest).name
    except RequestError:
        return None
    return store.root / "scans" / f"{SCAN_FORMAT}-{components.digest()[:12]}" / name[:2] / f"{name}.json"


def _read(path: Path) -> LayerScan | None:
    try:
        return from_json(read_input(path, limit_bytes=_MAX_SCAN_BYTES).decode())
    except (RequestError, ValueError):
        return None


def _write(store: Store, path: Path, scan: LayerScan) -> None:
    try:
        store.write(path, scan.to_json())
    except EnvbuildError:
        return  # who may only read a store looks anew each time


def _is(file: BinaryIO, part: _Part) -> bool:
    if not part.digest:
        return False
    digest, at, end = hashlib.sha256(), part.descriptor.offset, part.descriptor.end
    while at < end:
        chunk = os.pread(file.fileno(), min(_READ_BYTES, end - at), at)
        if not chunk:
            return False
        digest.update(chunk)
        at += len(chunk)
    return f"sha256:{digest.hexdigest()}" == part.digest


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
            raise RequestError(f"the host's library `{path}` is no library")
        lent[name] = found
    return lent
