"""Is a store whole? Every layer and locked file is read and compared with its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.store.records import LayerRecord, read_record
from envbuild.store.roots import read_root, root_files
from envbuild.store.store import Store
from envbuild.system import host
from envbuild.system.files import sha256
from envbuild.system.removal import remove

What = Literal["record", "blob", "file", "root", "unknown"]

REPLACEABLE: tuple[What, ...] = ("record", "blob", "file")
"""What the next build makes or fetches again."""

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something in a store that is not what its name says."""

    what: What
    """``record``, ``blob``, ``file``, ``root``, or ``unknown``: a file that no store writes there."""
    id: str
    """Layer key, blob digest or hex digest that the name stands for; empty where it is none."""
    path: Path
    """Where it lies, or should."""
    problem: str
    """What is wrong with it."""
    keys: tuple[str, ...] = ()
    """Keys of the layers that cannot be used for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was read, and what is wrong."""

    layers: int
    blobs: int
    files: int
    """How many records, squashfs and locked files were looked at (count)."""
    size_bytes: int
    """How much of them was read."""
    damages: tuple[Damage, ...]
    """By path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A file that was read: its length, and what is wrong with it."""

    size_bytes: int
    problem: str = ""


def verify(store: Store, *, advanced: Callable[[int], None] = lambda _: None) -> Verified:
    """Read all layers and locked files of a store; nothing is changed.

    Parameters
    ----------
    advanced : callable, optional
        Called with the bytes (count) of each file that was read.

    Raises
    ------
    OSError
        A directory of the store cannot be read.
    """
    damages: list[Damage] = []
    records = list(_records(store, damages))
    users: dict[str, list[str]] = {}
    for record in records:
        users.setdefault(record.blob, []).append(record.key)
    blobs = [path for path in _shelved(store.root / "blobs/sha256") if _is_named(path, damages)]
    shelves = [path for path in _shelved(store.root / "files/sha256") if _is_named(path, damages)]
    files = {path: shelf.name for shelf in shelves for path in sorted(shelf.iterdir())}
    expected = {path: path.name for path in blobs} | files
    with ThreadPoolExecutor(host.cores()) as pool:
        results = dict(
            zip(
                expected,
                pool.map(lambda path: _read(path, expected[path], advanced), expected),
                strict=True,
            )
        )
    for path, read in results.items():
        if not read.problem:
            continue
        if path in files:
            damages.append(Damage(what="file", id=files[path], path=path, problem=read.problem))
        else:
            digest = f"sha256:{path.name}"
            keys = tuple(users.get(digest, ()))
            damages.append(Damage(what="blob", id=digest, path=path, problem=read.problem, keys=keys))
    present = {f"sha256:{path.name}" for path in blobs}
    for record in records:
        if record.blob not in present:
            problem = f"its squashfs {record.blob[:19]}… is missing"
            path = store.record_path(record.key)
            damages.append(
                Damage(what="record", id=record.key, path=path, problem=problem, keys=(record.key,))
            )
    damages += _damaged_roots(store)
    return Verified(
        layers=len(records),
        blobs=len(blobs),
        files=len(shelves),
        size_bytes=sum(read.size_bytes for read in results.values()),
        damages=tuple(sorted(damages, key=lambda damage: str(damage.path))),
    )


def remove_damaged(store: Store, damages: Iterable[Damage]) -> None:
    """Remove what can be made or fetched again; with a blob the records that name it.

    Nobody else uses the store meanwhile (`Store.alone`).

    Raises
    ------
    OSError
        Something cannot be removed.
    """
    for damage in damages:
        if damage.what in ("blob", "file") and _is_whole_again(damage):
            continue
        if damage.what in REPLACEABLE:
            for key in damage.keys:
                store.record_path(key).unlink(missing_ok=True)
            remove(damage.path)


def _is_whole_again(damage: Damage) -> bool:
    """Return whether a build has replaced a file since: where there are no locks, it can."""
    try:
        return not damage.path.is_symlink() and sha256(damage.path) == damage.id.removeprefix("sha256:")
    except OSError:
        return False


def _records(store: Store, damages: list[Damage]) -> Iterator[LayerRecord]:
    for path in _shelved(store.root / "layers"):
        if path.suffix != ".json" or not _is_named(path, damages):
            continue
        key = f"sha256:{path.stem}"
        try:
            record = read_record(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            damages.append(Damage(what="record", id=key, path=path, problem=f"it cannot be used: {error}"))
            continue
        if record.key == key:
            yield record
        else:
            problem = f"it is the record of another layer, {record.name} {record.key[:19]}…"
            damages.append(Damage(what="record", id=key, path=path, problem=problem))


def _damaged_roots(store: Store) -> Iterator[Damage]:
    for path in root_files(store):
        try:
            read_root(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield Damage(what="root", id="", path=path, problem=f"{error}: what it needs is not known")


def _shelved(directory: Path) -> list[Path]:
    """Return what lies two levels below a directory, by path; none where there is no such directory."""
    try:
        shelves = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    return [path for shelf in shelves if shelf.is_dir() for path in sorted(shelf.iterdir())]


def _is_named(path: Path, damages: list[Damage]) -> bool:
    """Return whether a file has a digest for its name and lies in its place."""
    if _HEX.fullmatch(path.stem) and path.name[:2] == path.parent.name:
        return True
    damages.append(Damage(what="unknown", id="", path=path, problem="no store writes this here"))
    return False


def _read(path: Path, expected: str, advanced: Callable[[int], None]) -> _Read:
    try:
        if path.is_symlink():
            return _Read(size_bytes=0, problem=f"it is a link to `{path.readlink()}`")
        size = path.stat().st_size
        digest = sha256(path)
    except FileNotFoundError:
        return _Read(size_bytes=0)  # a build has put another in its place, or `prune` removed it
    except OSError as error:
        return _Read(size_bytes=0, problem=f"it cannot be read: {error.strerror}")
    advanced(size)
    problem = "" if digest == expected else f"its {size} bytes have the digest {digest[:12]}…"
    return _Read(size_bytes=size, problem=problem)
