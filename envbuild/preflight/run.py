"""Look at an image without running it: read its file systems, or what the store knows of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.errors import CheckError, EnvbuildError, RequestError
from envbuild.image.compose import FinishedLayer
from envbuild.image.environment import apply
from envbuild.image.model import Manifest
from envbuild.image.sif import AGAIN, LOCK, read_data, read_manifest, read_sif, unreadable
from envbuild.image.startup import EMPTY_DIRECTORIES
from envbuild.image.verify import THE_LOCK, verify_image
from envbuild.lock.model import Lock
from envbuild.lock.text import load
from envbuild.preflight import components
from envbuild.preflight.examine import Preflight, examine
from envbuild.preflight.requires import judge_python
from envbuild.preflight.scan import (
    SCAN_FORMAT,
    LayerScan,
    Scanned,
    from_json,
    scan_host_file,
    scan_layer,
)
from envbuild.preflight.simulate import Simulation
from envbuild.preflight.tree import ImageTree
from envbuild.rules.facts import Fact
from envbuild.rules.from_lock import facts_of_image
from envbuild.squashfs.layers import unreadable_layer
from envbuild.squashfs.reader import Squashfs
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.files import exists, read_input, signature
from envbuild.system.sealing import check_sealed_line, sealed_line

_MAX_SCAN_BYTES = 512 << 20
# Coarser than the clock of any file system that holds images.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """An image whose file systems were read: its processes are simulated, with and without a host."""

    image: Path
    """The file."""
    manifest: Manifest
    """What it says of itself."""
    scans: tuple[LayerScan, ...]
    """Of its layers, from bottom to top; or one of the whole."""
    changed: tuple[str, ...] = ()
    """What of it is not as it was written; see `envbuild.image.verify`."""

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

    def preflight(self, *, injected: Mapping[str, Path] | None = None) -> Preflight:
        """Return what is wrong with its processes.

        Parameters
        ----------
        injected : mapping of str to Path, optional
            As in `simulation`.

        Raises
        ------
        RequestError, ManyErrors
            A library of the host cannot be read; or the image carries no lock, or one that cannot be read.
        """
        return _examine(self.simulation(injected), self.manifest, self._lock())

    def facts(self, found: Preflight) -> dict[str, Fact]:
        """Return its facts, for the rules.

        Parameters
        ----------
        found : Preflight
            Of the image on its own libraries.

        Raises
        ------
        RequestError, ManyErrors
            It carries no lock, or one that cannot be read.
        """
        return facts_of_image(self._lock(), found.facts, apply(self.manifest.environment, {}))

    def _lock(self) -> Lock:
        try:
            return load(read_data(self.image, LOCK), self.image)
        except EnvbuildError as error:
            if THE_LOCK not in self.changed:
                raise
            problem = f"{THE_LOCK} of `{self.image.name}` is not the one that it was built with"
            raise CheckError(f"{problem}, and cannot be read: {error}", hint=AGAIN) from error


def preflight_layers(
    manifest: Manifest, lock: Lock, layers: Sequence[FinishedLayer], store: Store
) -> Preflight:
    """Say what would be wrong with the processes of an image that is composed of finished layers.

    Reads none of the image, so that it can be written meanwhile.

    Parameters
    ----------
    layers : sequence of FinishedLayer
        From bottom to top.
    store : Store
        As in `look`.

    Raises
    ------
    MachineError
        A squashfs cannot be read.
    """

    def read(layer: FinishedLayer) -> LayerScan:
        try:
            with layer.blob.open("rb") as file:
                size = layer.blob.stat().st_size
                return _scanned(file, 0, size, store, _scan_name(layer.digest))
        except (OSError, ValueError) as error:
            raise unreadable_layer(error) from error

    with ThreadPoolExecutor(host.cores()) as pool:
        scans = tuple(pool.map(read, layers))
    return _examine(_simulation(manifest, scans, {}), manifest, lock)


def keep_composed(manifest: Manifest, store: Store) -> None:
    """Keep that an image was composed here, so that `look` takes its word for which layers it is made of.

    An image has the data of its layers but not their tables: their digests cannot be compared with its bytes.
    """
    _write(store, _composed_name(manifest), "")


def look(image: Path, store: Store, *, changed: tuple[str, ...] | None = None) -> Looked:
    """Read an image's file system, or what the store knows of it.

    Parameters
    ----------
    store : Store
        Keeps what was read of each layer, and of each image, under its digest, in ``scans/``; what it has
        of layers counts for images that were composed here. One that cannot be written, or holds a damaged
        scan, costs time alone.
    changed : tuple of str, optional
        What `verify_image` found; if absent the image is compared here, unless it has been and the file is
        the same by its inode and times.

    Raises
    ------
    RequestError
        It is no image of ours, or was built with a file system that cannot be read.
    CheckError
        Its file system cannot be read, and is not the one that was built.
    """
    manifest = read_manifest(image)
    changed = _changed(image, manifest, store) if changed is None else changed
    trusted = not changed and exists(store.root / _composed_name(manifest))
    layers = manifest.file_system.layers if manifest.file_system and trusted else ()
    scans = [scan for layer in layers if (scan := _read_kept(store, layer.digest)) is not None]
    if not layers or len(scans) < len(layers):
        scans = [_scan_image(image, manifest, store, same=not changed)]
    return Looked(image=image, manifest=manifest, scans=tuple(scans), changed=changed)


def _simulation(manifest: Manifest, scans: Sequence[LayerScan], lent: Mapping[str, Scanned]) -> Simulation:
    variables = apply(manifest.environment, {})
    return Simulation(
        ImageTree(scans, lent),
        machine=manifest.architecture,
        library_path=[*variables.get("LD_LIBRARY_PATH", "").split(":"), *EMPTY_DIRECTORIES],
        injected=lent,
    )


def _examine(simulation: Simulation, manifest: Manifest, lock: Lock) -> Preflight:
    python = judge_python(
        simulation.tree,
        python=manifest.python,
        architecture=manifest.architecture,
        requests=lock.requests,
    )
    return examine(simulation, lacks=manifest.lacks, python=python)


def _scan_image(image: Path, manifest: Manifest, store: Store, *, same: bool) -> LayerScan:
    root = read_sif(image).root
    if root is None:
        raise CheckError(f"`{image.name}` holds no file system", hint=AGAIN)
    # What another file system holds must not be kept under this one's name.
    name = _scan_name(manifest.digest) if same else None
    try:
        with image.open("rb") as file:
            return _scanned(file, root.offset, root.size, store, name)
    except OSError as error:
        raise unreadable(image, error) from error
    except ValueError as error:
        if same:
            raise unreadable(image, error) from error
        problem = f"the file system of `{image.name}` is not the one that was built, and cannot be read"
        raise CheckError(f"{problem}: {error}", hint=AGAIN) from error


def _scanned(file: BinaryIO, offset: int, size: int, store: Store, name: str | None) -> LayerScan:
    """Read what a file system holds: as the store has it under a name, or from its bytes."""
    kept = None if name is None else _read(store.root / name)
    if kept is not None:
        return kept
    scan = scan_layer(Squashfs(file, offset, size))
    if name is not None:
        # What one flipped bit turns into another library would decide a verdict.
        _write(store, name, sealed_line(scan.to_json()))
    return scan


def _scan_name(digest: str) -> str:
    value = digest.removeprefix("sha256:")
    return f"scans/{SCAN_FORMAT}-{components.digest()[:12]}/{value[:2]}/{value}.json"


def _composed_name(manifest: Manifest) -> str:
    return f"scans/composed/{manifest.digest.removeprefix('sha256:')}"


def _read_kept(store: Store, digest: str) -> LayerScan | None:
    return _read(store.root / _scan_name(digest))


def _read(path: Path) -> LayerScan | None:
    try:
        return from_json(check_sealed_line(read_input(path, limit_bytes=_MAX_SCAN_BYTES).decode()))
    except (RequestError, ValueError):
        return None


def _write(store: Store, name: str, text: str) -> None:
    try:
        store.write(name, text)
    except EnvbuildError:
        return  # it is read anew each time


def _changed(image: Path, manifest: Manifest, store: Store) -> tuple[str, ...]:
    """Return what of an image is not as it was written; compared once for a file that stays as it is.

    An image of 3 GB that is launched again and again is not read each time.
    """
    try:
        status = image.stat()
    except OSError as error:
        raise unreadable(image, error) from error
    words = [*signature(image), manifest.digest]
    mark = f"scans/compared/{hashlib.sha256(json.dumps(words).encode()).hexdigest()}"
    try:
        # A change right after a comparison may leave the times of the file as they were.
        if (store.root / mark).stat().st_mtime_ns > status.st_ctime_ns + _SETTLED_NS:
            return ()
    except OSError:
        pass
    changed = verify_image(image)
    if not changed:
        _write(store, mark, "")
    return changed


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
