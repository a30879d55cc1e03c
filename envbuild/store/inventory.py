"""The content of a store: every layer, blob, file, image, scan and log, with its size and last use."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.formats import is_newer
from envbuild.store import images
from envbuild.store.records import read_record
from envbuild.store.store import Store

Kind = Literal["layer", "blob", "file", "image", "scan", "log", "leftover", "newer"]

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a store that can be kept or removed."""

    kind: Kind
    """A ``blob`` is one that no record names; a ``leftover``, a download that was killed; ``newer``, a record
    of a layer in a format to come, whose blob is unknown."""
    id: str
    """Layer key, digest of a blob or of an image or scan, hex digest of a locked file; or the name."""
    name: str
    """For messages."""
    size_bytes: int
    """Length of its files; a blob that several layers name counts for each of them."""
    used_s: float
    """Time of its last use, in seconds since the epoch."""
    path: Path
    """The file; the record of a layer; the directory of a locked file or an image."""
    blob: str = ""
    """Digest of the squashfs of a layer or blob; else empty."""


def items(store: Store) -> list[Item]:
    """Return everything in a store, sorted by kind and id; a file that vanishes meanwhile is omitted."""
    layers = list(_layers(store))
    recorded = {layer.blob for layer in layers}
    blobs = (blob for blob in _blobs(store) if blob.blob not in recorded)
    stored = [*layers, *blobs, *_files(store), *_images(store)]
    stored += _others(store.root / "scans", "scan")
    stored += _others(store.root / "logs", "log")
    stored += _others(store.root / "parts", "leftover")
    stored += [item for item in _others(store.root / "files", "leftover") if item.name.startswith(".")]
    return sorted(stored, key=lambda item: (item.kind, item.id))


def areas(store: Store) -> dict[str, int]:
    """Return the bytes below each top directory of a store, by name; hard links count once."""
    sizes = {}
    for top in sorted(store.root.iterdir()) if store.exists else ():
        by_inode = {(status.st_dev, status.st_ino): status.st_size for _, status in walk_files(top)}
        sizes[top.name] = sum(by_inode.values())
    return sizes


def walk_files(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files at and below a path with their status; links are not followed."""
    try:
        status = top.lstat()
        if stat.S_ISREG(status.st_mode):
            yield top, status
        children = sorted(top.iterdir()) if stat.S_ISDIR(status.st_mode) else []
    except OSError:
        return
    for child in children:
        yield from walk_files(child)


def _layers(store: Store) -> Iterator[Item]:
    for path in sorted((store.root / "layers").glob("??/*.json")):
        try:
            record = read_record(path)
            used_s = path.stat().st_mtime
        except (OSError, ValueError) as error:
            # `verify` reports it.
            for _, status in walk_files(path) if is_newer(error) else ():
                size, used_s, name = status.st_size, status.st_mtime, path.stem[:16]
                yield Item("newer", f"sha256:{path.stem}", name, size_bytes=size, used_s=used_s, path=path)
            continue
        if record.key == f"sha256:{path.stem}":
            name, blob, size = record.name, record.blob, record.size_bytes
            yield Item("layer", record.key, name, size_bytes=size, used_s=used_s, path=path, blob=blob)


def _blobs(store: Store) -> Iterator[Item]:
    for path, status in walk_files(store.root / "blobs/sha256"):
        if _HEX.fullmatch(path.name):
            digest, size, used_s = f"sha256:{path.name}", status.st_size, status.st_mtime
            yield Item("blob", digest, path.name[:16], size_bytes=size, used_s=used_s, path=path, blob=digest)


def _files(store: Store) -> Iterator[Item]:
    for path in sorted((store.root / "files/sha256").glob("??/*")):
        files = list(walk_files(path))
        if files and _HEX.fullmatch(path.name):
            size = sum(status.st_size for _, status in files)
            used_s = max(status.st_mtime for _, status in files)
            yield Item("file", path.name, files[0][0].name, size_bytes=size, used_s=used_s, path=path)


def _images(store: Store) -> Iterator[Item]:
    for path in sorted((store.root / images.DIRECTORY).glob("??/*")):
        files = [status for _, status in walk_files(path)]
        if files and _HEX.fullmatch(path.name):
            size, used_s = sum(file.st_size for file in files), max(file.st_mtime for file in files)
            name = next((image.name for image in images.stored_images(path)), path.name[:16])
            yield Item("image", f"sha256:{path.name}", name, size_bytes=size, used_s=used_s, path=path)


def _others(directory: Path, kind: Kind) -> Iterator[Item]:
    for path, status in walk_files(directory):
        identity = f"sha256:{path.stem}" if kind == "scan" else path.name
        yield Item(kind, identity, path.name, size_bytes=status.st_size, used_s=status.st_mtime, path=path)
