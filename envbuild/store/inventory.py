"""What lies in a store: every layer, blob, file and leftover, with its size and when it was last used."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.store.store import QUARANTINE, LayerRecord, Store, read_record

# What a store names what it writes. A directory of somebody's that is taken for one may have such areas, too.
_WRITTEN = {
    "log": re.compile(r"[0-9a-f]{16}-[a-z]+\.log|.+-timings\.json"),
    "scan": re.compile(r"[0-9a-f]{64}(\.json)?"),
    "quarantine": re.compile(r".+\.[0-9a-f]{8}"),
    "leftover": re.compile(r"\.unverified-.*"),
}

Kind = Literal["layer", "blob", "file", "scan", "log", "quarantine", "leftover"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that can be kept or taken away.

    Attributes
    ----------
    kind : str
        ``layer`` (record and blob), ``blob`` (one that no record names), ``file`` (a locked one),
        ``scan`` (what was read of a blob), ``log``, ``quarantine``, or ``leftover`` of a killed process.
    id : str
        Layer key, blob digest, hex digest of the file or of the scanned blob; else the name.
    name : str
        For people.
    blob : str
        Digest of the squashfs of a layer or blob; empty otherwise.
    size_bytes : int
        Length of its files; a blob that several layers name counts for each of them.
    used_s : float
        When it was last used, in seconds since the epoch.
    path : Path
        Its file; of a layer, its record; of a locked file, its directory.
    """

    kind: Kind
    id: str
    name: str
    blob: str = ""
    size_bytes: int
    used_s: float
    path: Path


def items(store: Store) -> list[Item]:
    """Return everything in a store, by kind and id; what vanishes meanwhile is passed over."""
    layers = list(_layers(store))
    named = {layer.blob for layer in layers}
    found = [*layers, *(blob for blob in _blobs(store) if blob.blob not in named)]
    found += [*_files(store), *_scans(store)]
    found += _plain(store.root / "logs", "log")
    found += _plain(store.root / QUARANTINE, "quarantine")
    found += [item for top in ("files", "blobs") for item in _plain(store.root / top, "leftover")]
    return sorted(found, key=lambda item: (item.kind, item.id))


def areas(store: Store) -> dict[str, int]:
    """Return the bytes below each top directory of a store, by name; a file with two names counts once."""
    found = {}
    for top in sorted(store.root.iterdir()) if store.root.is_dir() else ():
        seen: set[tuple[int, int]] = set()
        total = 0
        for _, status in walk_files(top):
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_size
        found[top.name] = total
    return found


def walk_files(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files at and below a path with their status, following no links."""
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
            record: LayerRecord = read_record(path)
            used_s = path.stat().st_mtime
        except (OSError, ValueError):
            continue  # `verify` tells of it
        if record.key != f"sha256:{path.stem}":
            continue
        yield Item(
            kind="layer",
            id=record.key,
            name=record.name,
            blob=record.blob,
            size_bytes=record.size_bytes,
            used_s=used_s,
            path=path,
        )


def _blobs(store: Store) -> Iterator[Item]:
    for path in sorted((store.root / "blobs/sha256").glob("??/*")):
        if not re.fullmatch(r"[0-9a-f]{64}", path.name) or (status := _status(path)) is None:
            continue
        digest = f"sha256:{path.name}"
        yield Item(
            kind="blob",
            id=digest,
            name=path.name[:16],
            blob=digest,
            size_bytes=status.st_size,
            used_s=status.st_mtime,
            path=path,
        )


def _files(store: Store) -> Iterator[Item]:
    for path in sorted((store.root / "files/sha256").glob("??/*")):
        held = list(walk_files(path))
        if not held or not re.fullmatch(r"[0-9a-f]{64}", path.name):
            continue
        yield Item(
            kind="file",
            id=path.name,
            name=held[0][0].name,
            size_bytes=sum(status.st_size for _, status in held),
            used_s=max(status.st_mtime for _, status in held),
            path=path,
        )


def _scans(store: Store) -> Iterator[Item]:
    for path, status in walk_files(store.root / "scans"):
        if not _WRITTEN["scan"].fullmatch(path.name):
            continue
        yield Item(
            kind="scan",
            id=path.stem,
            name=path.relative_to(store.root).as_posix(),
            size_bytes=status.st_size,
            used_s=status.st_mtime,
            path=path,
        )


def _plain(directory: Path, kind: Literal["log", "quarantine", "leftover"]) -> list[Item]:
    """Return the files below a directory that a store has put there.

    As leftovers those that never got a name; what lies in quarantine may be a directory.
    """
    return [
        Item(
            kind=kind,
            id=path.name,
            name=path.name,
            size_bytes=status.st_size,
            used_s=status.st_mtime,
            path=path,
        )
        for path, status in walk_files(directory)
        if _WRITTEN[kind].fullmatch(
            path.relative_to(directory).parts[0] if kind == "quarantine" else path.name
        )
    ]


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
