"""Verifies a store: reads every layer, locked file and image, and compares it with the digest in its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.formats import is_newer
from envbuild.store import images
from envbuild.store.gc_roots import read_root, root_files
from envbuild.store.records import LayerRecord, read_record
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.files import sha256
from envbuild.system.removal import remove

DamageKind = Literal["record", "blob", "file", "image", "root", "newer", "unknown"]

REPLACEABLE: tuple[DamageKind, ...] = ("record", "blob", "file", "image")
"""Kinds that the next build builds or fetches again, or the next command that names the image."""

_STRAY = "no store writes this here"
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A damaged, missing or unknown file of a store."""

    kind: DamageKind
    """``newer`` is a record or root in a format to come, ``unknown`` a file that no store writes there."""
    id: str
    """Layer key, digest of a blob or image, or hex digest of a file; empty for others."""
    path: Path
    problem: str
    keys: tuple[str, ...] = ()
    """Keys of the layers that cannot be used because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of reading a store."""

    layers: int
    blobs: int
    files: int
    images: int
    """Number of records, blobs, locked files and images of registries."""
    size_bytes: int
    """Bytes that were read."""
    damages: tuple[Damage, ...]
    """Sorted by path."""


def verify(store: Store, *, advanced: Callable[[int], None] = lambda _: None) -> Verified:
    """Read all layers, locked files and images of a store; change nothing.

    `advanced` is called with the bytes of each file that was read.
    """
    damages: list[Damage] = []
    # Without the records' paths: those of a large store do not fit into memory.
    blob_of = {record.key: record.blob for record in _records(store, damages)}
    keys_of: dict[str, list[str]] = {}
    for key, blob in blob_of.items():
        keys_of.setdefault(blob, []).append(key)
    blobs = {path: path.name for path in _entries(store.root / "blobs/sha256", damages)}
    directories = list(_entries(store.root / "files/sha256", damages, directories=True))
    files = {path: directory.name for directory in directories for path in sorted(directory.iterdir())}
    kept = list(_entries(store.root / images.DIRECTORY, damages, directories=True))
    pulled = {path: directory.name for directory in kept for path in images.stored_images(directory)}
    expected = blobs | files | pulled
    with ThreadPoolExecutor(host.cores()) as pool:
        results = list(pool.map(lambda path: _read(path, expected[path], advanced), expected))
    for (path, digest), (_, problem) in zip(expected.items(), results, strict=True):
        if problem and path in files:
            damages.append(Damage(kind="file", id=digest, path=path, problem=problem))
        elif problem and path in pulled:
            damages.append(Damage(kind="image", id=f"sha256:{digest}", path=path, problem=problem))
        elif problem:
            blob = f"sha256:{digest}"
            keys = tuple(keys_of.get(blob, ()))
            damages.append(Damage(kind="blob", id=blob, path=path, problem=problem, keys=keys))
    for key, blob in blob_of.items():
        if store.blob_path(blob) not in blobs:
            problem = f"its squashfs {blob[:19]}… is missing"
            damages.append(_damaged_record(store.record_path(key), problem))
    damages += _damaged_roots(store)
    return Verified(
        layers=len(blob_of),
        blobs=len(blobs),
        files=len(directories),
        images=len(pulled),
        size_bytes=sum(size_bytes for size_bytes, _ in results),
        damages=tuple(sorted(damages, key=lambda damage: str(damage.path))),
    )


def remove_damaged(store: Store, damages: Iterable[Damage]) -> None:
    """Remove what can be built or fetched again; with a blob the records that name it.

    The caller holds the store (`Store.alone`).
    """
    for damage in damages:
        if damage.kind in REPLACEABLE:
            for key in damage.keys:
                store.record_path(key).unlink(missing_ok=True)
            remove(damage.path)


def _records(store: Store, damages: list[Damage]) -> Iterator[LayerRecord]:
    for path in _entries(store.root / "layers", damages, suffix=".json"):
        try:
            record = read_record(path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ValueError) as error:
            damages.append(_newer(path, error) or _damaged_record(path, f"it cannot be used: {error}"))
            continue
        if record.key == f"sha256:{path.stem}":
            yield record
        else:
            problem = f"it is the record of another layer, {record.name} {record.key[:19]}…"
            damages.append(_damaged_record(path, problem))


def _damaged_record(path: Path, problem: str) -> Damage:
    key = f"sha256:{path.stem}"
    return Damage(kind="record", id=key, path=path, problem=problem, keys=(key,))


def _newer(path: Path, error: Exception) -> Damage | None:
    return Damage(kind="newer", id="", path=path, problem=str(error)) if is_newer(error) else None


def _damaged_roots(store: Store) -> Iterator[Damage]:
    for path in root_files(store):
        try:
            read_root(path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ValueError) as error:
            problem = f"{error}: what it needs is not known"
            yield _newer(path, error) or Damage(kind="root", id="", path=path, problem=problem)


def _entries(
    directory: Path, damages: list[Damage], suffix: str = "", *, directories: bool = False
) -> Iterator[Path]:
    """Yield the entries ``ab/<hex>SUFFIX`` below a directory, by path; report others as unknown."""
    for group in sorted(directory.iterdir()) if directory.exists() else ():
        if group.is_symlink() or not group.is_dir():
            damages.append(Damage(kind="unknown", id="", path=group, problem=_STRAY))
            continue
        for path in sorted(group.iterdir()):
            is_named = _HEX.fullmatch(path.name.removesuffix(suffix)) and path.name[:2] == group.name
            if is_named and (not directories or (path.is_dir() and not path.is_symlink())):
                yield path
            else:
                damages.append(Damage(kind="unknown", id="", path=path, problem=_STRAY))


def _read(path: Path, digest: str, advanced: Callable[[int], None]) -> tuple[int, str]:
    """Return a file's length in bytes, and how it differs from its digest (empty if it does not)."""
    try:
        if path.is_symlink():
            return 0, f"it is a link to `{path.readlink()}`"
        size_bytes, actual = path.stat().st_size, sha256(path)
    except FileNotFoundError:
        return 0, ""  # replaced or removed meanwhile
    except OSError as error:
        return 0, f"it cannot be read: {error.strerror}"
    advanced(size_bytes)
    problem = "" if actual == digest else f"its {size_bytes} bytes have the digest {actual[:12]}…"
    return size_bytes, problem
