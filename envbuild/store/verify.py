"""Is a store whole? Every byte is read and held to its name; what is damaged can be put aside."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuild.store import plans
from envbuild.store.pins import damaged_pins
from envbuild.store.store import LayerRecord, Store, read_record
from envbuild.system import host
from envbuild.system.files import NOTE_LIMIT_BYTES, read_small, sha256
from envbuild.system.sealing import check_sealed_line

What = Literal["record", "blob", "file", "note", "pin", "stranger", "unreadable"]

# Where what can be found out again is noted: nobody uses one that is damaged.
_NOTES = (plans.DIRECTORY, "scans", "verdicts")
_HEX = r"[0-9a-f]{64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something in a store that is not what its name says.

    Attributes
    ----------
    what : str
        ``record``, ``blob``, ``file``, ``note`` (what was read of a blob, what a test came to, what a build
        told), ``pin``, ``stranger``: what no store writes there, or ``unreadable``: a directory of which
        nobody here can say what lies in it.
    id : str
        Layer key, blob digest or hex digest that the name stands for; empty where it is none.
    path : Path
        Where it lies, or should.
    problem : str
        What is wrong with it.
    keys : tuple of str
        Keys of the layers that cannot be used for it.
    """

    what: What
    id: str
    path: Path
    problem: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was read, and what is wrong.

    Attributes
    ----------
    layers, blobs, files, notes : int
        How many records, squashfs, locked files and notes were looked at (count).
    size_bytes : int
        How much of them was read.
    damages : tuple of Damage
        By path.
    """

    layers: int
    blobs: int
    files: int
    notes: int
    size_bytes: int
    damages: tuple[Damage, ...]


def verify(store: Store, *, read: Callable[[int], None] = lambda _: None) -> Verified:
    """Read all of a store; nothing is changed.

    Parameters
    ----------
    read : callable, optional
        Called with the bytes (count) of each file that was read.
    """
    records, damages = _records(store)
    by_blob: dict[str, list[LayerRecord]] = {}
    for record in records:
        by_blob.setdefault(record.blob, []).append(record)
    longest = max((record.size_bytes for record in records), default=0)
    blobs = _named(store.root / "blobs/sha256", damages)
    shelves = _named(store.root / "files/sha256", damages)
    contents = {path: _content(path, damages) for path in shelves}
    wanted = [*blobs, *(path for path in contents.values() if path is not None)]
    with ThreadPoolExecutor(host.cores()) as pool:
        # A blob without a record may be of any length: that of a layer which is about to be recorded, too.
        limits = {path: longest for path in blobs if f"sha256:{path.name}" in by_blob}
        found = pool.map(lambda path: _digest(path, read, limits.get(path)), wanted)
        digests = dict(zip(wanted, found, strict=True))
    names = {path.name for path in (*blobs, *shelves)}
    for path in blobs:
        users = by_blob.get(f"sha256:{path.name}", [])
        keys = tuple(record.key for record in users)
        if (problem := _wrong(path.name, digests[path], path, users, names)) is not None:
            damages.append(
                Damage(what="blob", id=f"sha256:{path.name}", path=path, problem=problem, keys=keys)
            )
    for shelf, file in contents.items():
        if file is not None and (problem := _wrong(shelf.name, digests[file], file, [], names)) is not None:
            damages.append(Damage(what="file", id=shelf.name, path=file, problem=problem))
    notes, spoilt = _notes(store)
    damages += spoilt
    closed = {damage.path for damage in damages if damage.what == "unreadable"}
    damages += _without_blob(store, records, {path.name for path in blobs}, closed)
    damages += [
        Damage(what="pin", id="", path=path, problem="it cannot be read: nobody knows what it keeps")
        for path in damaged_pins(store)
    ]
    return Verified(
        layers=len(records),
        blobs=len(blobs),
        files=len(shelves),
        notes=notes,
        size_bytes=sum(size for size, _ in digests.values()),
        damages=tuple(sorted(damages, key=lambda damage: str(damage.path))),
    )


def put_aside(store: Store, damages: Iterable[Damage]) -> list[Path]:
    """Move what is damaged to ``quarantine/``, so that it is made or fetched again; return what was moved.

    With a blob go the records that name it. What a build has mended since it was read stays.

    Raises
    ------
    MachineError
        The store cannot be written.
    OSError
        Something cannot be moved.
    """
    moved = []
    for damage in damages:
        if _is_mended(store, damage):
            continue
        for path in (*(store.record_path(key) for key in damage.keys), damage.path):
            try:
                store.put_aside(path)
            except FileNotFoundError:
                continue  # it went along with another, or what is missing is the damage
            moved.append(path)
    return moved


def _is_mended(store: Store, damage: Damage) -> bool:
    """Whether a build has put what is whole in its place meanwhile: reading a store takes long."""
    try:
        if damage.path.is_symlink():
            return False
        if damage.what == "blob":
            return sha256(damage.path) == damage.path.name
        if damage.what == "file":
            return sha256(damage.path) == damage.path.parent.name
        return damage.what == "record" and store.get(damage.id) is not None
    except (OSError, ValueError):
        return False


def _records(store: Store) -> tuple[list[LayerRecord], list[Damage]]:
    records: list[LayerRecord] = []
    damages: list[Damage] = []
    for path in _shelved(store.root / "layers", damages):
        key = f"sha256:{path.stem}"
        if not re.fullmatch(rf"{_HEX}\.json", path.name) or path.name[:2] != path.parent.name:
            damages.append(Damage(what="stranger", id="", path=path, problem="no store writes this here"))
            continue
        try:
            record = read_record(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            damages.append(Damage(what="record", id=key, path=path, problem=f"it cannot be used: {error}"))
            continue
        if record.key != key:
            problem = f"it is the record of another layer, {record.name} {record.key[:19]}…"
            damages.append(Damage(what="record", id=key, path=path, problem=problem))
            continue
        records.append(record)
    return records, damages


def _notes(store: Store) -> tuple[int, list[Damage]]:
    """Hold the notes to their seals; return how many there are, and those that are damaged."""
    damages: list[Damage] = []
    paths = [
        Path(place, file)
        for name in _NOTES
        for place, _, files in os.walk(store.root / name, onerror=lambda error: _closed(error, damages))
        for file in files
        if file.endswith(".json")
    ]
    for path in sorted(paths):
        try:
            _check_note(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            damages.append(Damage(what="note", id="", path=path, problem=f"it cannot be used: {error}"))
    return len(paths), damages


def _check_note(path: Path) -> None:
    content = read_small(path, limit_bytes=NOTE_LIMIT_BYTES).decode()
    if path.parent.name != plans.DIRECTORY:
        check_sealed_line(content)
        return
    try:
        # Nothing depends on what it says, and it has no seal.
        json.loads(content)
    except RecursionError as error:
        raise ValueError("no plan") from error


def _named(root: Path, damages: list[Damage]) -> list[Path]:
    """Return what has a digest for a name; the rest is nobody's."""
    found = []
    for path in _shelved(root, damages):
        if path.name.startswith(".unverified-"):
            continue  # somebody is writing it, or was killed
        if re.fullmatch(_HEX, path.name) and path.name[:2] == path.parent.name:
            found.append(path)
        else:
            damages.append(Damage(what="stranger", id="", path=path, problem="no store writes this here"))
    return found


def _shelved(root: Path, damages: list[Damage]) -> Iterator[Path]:
    """Yield what lies two levels below a directory, by path; what cannot be listed is told."""
    for shelf in _listed(root, damages):
        if shelf.is_dir():
            yield from _listed(shelf, damages)


def _listed(directory: Path, damages: list[Damage]) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError as error:
        _closed(error, damages)
        return []


def _closed(error: OSError, damages: list[Damage]) -> None:
    """Note that a directory cannot be listed; one that is gone, or was never made, holds nothing."""
    if not isinstance(error, FileNotFoundError):
        path = Path(error.filename)
        damages.append(
            Damage(what="unreadable", id="", path=path, problem=f"it cannot be read: {error.strerror}")
        )


def _content(shelf: Path, damages: list[Damage]) -> Path | None:
    """Return the one file of a locked file's directory; an empty one is left by a killed download."""
    try:
        held = sorted(shelf.iterdir())
    except OSError as error:
        damages.append(
            Damage(what="file", id=shelf.name, path=shelf, problem=f"it cannot be read: {error.strerror}")
        )
        return None
    for path in held[1:]:
        # The same bytes may be locked under two names.
        if _digest(path, lambda _: None)[1] != shelf.name:
            damages.append(Damage(what="stranger", id="", path=path, problem="no locked file of this digest"))
    return held[0] if held else None


def _digest(path: Path, read: Callable[[int], None], limit_bytes: int | None = None) -> tuple[int, str]:
    """Return length and hex digest; a reason in its place where it cannot be read, or is longer than any."""
    try:
        if path.is_symlink():
            return 0, f"it is a link to `{path.readlink()}`, which no store makes"
        size = path.stat().st_size
        if limit_bytes is not None and size > limit_bytes:
            return 0, f"it has {size} bytes, more than any layer that is recorded"
        found = sha256(path)
    except OSError as error:
        return 0, f"it cannot be read: {error.strerror}"
    read(size)
    return size, found


def _wrong(
    name: str, found: tuple[int, str], path: Path, users: list[LayerRecord], names: set[str]
) -> str | None:
    size, digest = found
    if digest == name or not os.path.lexists(path):
        return None
    if " " in digest:
        return digest
    if digest in names:
        return f"it holds the bytes of another, {digest[:12]}…"
    lengths = {record.size_bytes for record in users} - {size}
    if lengths:
        return f"it has {size} bytes in place of {lengths.pop()}"
    return f"its bytes have the digest {digest[:12]}…"


def _without_blob(
    store: Store, records: list[LayerRecord], there: set[str], closed: Set[Path]
) -> Iterator[Damage]:
    for record in records:
        if closed & {*store.blob_path(record.blob).parents}:
            continue  # it may be there
        if record.blob.removeprefix("sha256:") not in there:
            path = store.record_path(record.key)
            if not path.exists():
                continue  # taken away while we looked
            problem = f"its squashfs {record.blob[:19]}… is missing"
            yield Damage(what="record", id=record.key, path=path, problem=problem, keys=(record.key,))
