"""Who needs what of a store: records that keep layers and files from being taken away.

Each is a small file of its own in ``pins/``, so that two processes never write
the same one and a network file system needs no locks:

- an image that was built, as long as its file is there and is still that image;
- a build in progress, as long as its process lives;
- what somebody asked to keep, until they say otherwise.

An image of ours carries its plan and lock, so a pin repeats what it needs only
for being read fast, and where the image cannot be read just now.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from envbuild.errors import EnvbuildError
from envbuild.store.store import Store
from envbuild.system import clock, host
from envbuild.system.files import read_small

PIN_FORMAT = 1
DIRECTORY = "pins"

Kind = Literal["image", "build", "lock", "key"]
State = Literal["live", "gone", "unreachable"]

# A build on another host shows no process here; after this time it is taken to have ended.
_FOREIGN_BUILD_S = 7 * 86_400.0
_LIMIT_BYTES = 16 << 20
_KINDS = ("image", "build", "lock", "key")
_TEXTS = ("kind", "name", "under", "digest", "spec", "process")
_LISTS = ("keys", "blobs", "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One reason to keep something.

    Attributes
    ----------
    kind : str
        ``image``, ``build`` (one in
        progress), ``lock`` or ``key``.
    name : str
        What needs it: an absolute path, a key, or a build's host and process.
    asked : bool
        Whether somebody asked for it; it then stays until they take it back.
    under : str
        A directory that is there wherever `name` can be: if it is missing too, its file system may
        just not be mounted.
    digest : str
        ``sha256:…``: the identity of the image; empty where there is none.
    spec : str
        The spec that builds it again; empty where none is known.
    process : str
        ``PID STARTED HOST`` of a build in progress; empty otherwise.
    keys, blobs, files : tuple of str
        Layers by key and squashfs by digest (``sha256:…``), locked files by hex digest; sorted.
    """

    kind: Kind
    name: str
    asked: bool = False
    under: str = ""
    digest: str = ""
    spec: str = ""
    process: str = ""
    keys: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The name of its record: the same need is one record."""
        words = json.dumps([self.kind, self.name, self.asked, self.process])
        return hashlib.sha256(words.encode()).hexdigest() + ".json"

    @property
    def label(self) -> str:
        """What people call it."""
        kind = {"build": "build in progress"}.get(self.kind, self.kind)
        return f"{kind} {self.name}" + (" (pinned)" if self.asked else "")

    def to_json(self) -> str:
        """Return the canonical text."""
        return json.dumps({"format": PIN_FORMAT, **asdict(self)}, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must stay, and for whom.

    Attributes
    ----------
    keys, blobs, files : dict of str to tuple of str
        Layer key, blob digest, hex digest of a locked file → labels of what needs it, sorted.
    """

    keys: dict[str, tuple[str, ...]]
    blobs: dict[str, tuple[str, ...]]
    files: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A pin and whether what it speaks of is still there.

    Attributes
    ----------
    state : str
        ``live``; ``gone``; or ``unreachable``, which counts as live: unknown is not gone.
    path : Path
        Its record.
    """

    pin: Pin
    state: State
    path: Path


def write_pin(store: Store, pin: Pin) -> Path:
    """Record a need; nothing is written where it is recorded already.

    Raises
    ------
    MachineError
        The store cannot be written, or the disk is full.
    """
    path = store.root / DIRECTORY / pin.file
    tidy = replace(
        pin,
        keys=tuple(sorted(set(pin.keys))),
        blobs=tuple(sorted(set(pin.blobs))),
        files=tuple(sorted(set(pin.files))),
    )
    text = tidy.to_json()
    with contextlib.suppress(OSError, ValueError):
        if read_small(path, limit_bytes=_LIMIT_BYTES).decode() == text:
            return path
    store.write(path, text)
    return path


def read_pin(path: Path) -> Pin:
    """Read a record.

    Raises
    ------
    ValueError
        It is damaged, or none.
    OSError
        It cannot be read.
    """
    try:
        data = json.loads(read_small(path, limit_bytes=_LIMIT_BYTES))
    except RecursionError as error:
        raise ValueError("no pin") from error
    return _pin(data)


def pin_files(store: Store) -> list[Path]:
    """Return all records, sorted by name."""
    return sorted((store.root / DIRECTORY).glob("*.json"))


def held(store: Store, identify: Callable[[Pin], str | None]) -> list[Held]:
    """Return all pins that can be read, with what became of them, by label.

    A record that vanishes meanwhile is passed over; one that is damaged is
    told by `envbuild.store.verify`.

    Parameters
    ----------
    identify : callable
        The image's digest that the file or installation of a pin bears now; None where there is
        none. May raise OSError where that cannot be told.
    """
    found = (look(path, identify) for path in pin_files(store))
    return sorted(filter(None, found), key=lambda each: (each.pin.label, each.path.name))


def look(path: Path, identify: Callable[[Pin], str | None]) -> Held | None:
    """Return one pin, with what became of it; None where there is none that can be read."""
    try:
        pin, age_s = read_pin(path), clock.epoch_s() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    return Held(pin=pin, state=state_of(pin, identify, age_s=age_s), path=path)


def damaged_pins(store: Store) -> list[Path]:
    """Return the records that cannot be read: as long as there is one, nobody knows what it keeps."""
    found = []
    for path in pin_files(store):
        try:
            read_pin(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            found.append(path)
    return found


def state_of(pin: Pin, identify: Callable[[Pin], str | None], *, age_s: float) -> State:
    """Return whether what a pin speaks of is still there.

    Parameters
    ----------
    age_s : float
        Seconds since the record was written.
    """
    if pin.asked:
        return "live"
    if pin.kind == "build":
        return _process_state(pin.process, age_s)
    try:
        there = identify(pin)
    except OSError:
        return "unreachable"
    # A link that leads nowhere is a file system that is not mounted as well.
    if there is None and not os.path.exists(pin.under):  # noqa: PTH110  # that of a Path raises
        return "unreachable"
    return "live" if there == pin.digest else "gone"


def needs_of(pins: Iterable[Pin]) -> Needs:
    """Return what some pins keep. Pure."""
    tables: dict[str, dict[str, set[str]]] = {name: {} for name in _LISTS}
    for pin in pins:
        for name in _LISTS:
            for thing in getattr(pin, name):
                tables[name].setdefault(thing, set()).add(pin.label)
    sorted_ = {
        name: {thing: tuple(sorted(labels)) for thing, labels in sorted(table.items())}
        for name, table in tables.items()
    }
    return Needs(**sorted_)


def hold_build(
    store: Store, *, keys: Iterable[str] = (), blobs: Iterable[str] = (), files: Iterable[str] = ()
) -> Path | None:
    """Say that this process is about to use layers, blobs and files; layers become young again.

    Returns
    -------
    Path or None
        The record, to be removed when the build is done; None where the store cannot be written. It
        counts for nothing once this process has ended.
    """
    pid = os.getpid()
    words = f"{pid} {_started(pid)} {host.name()}"
    name = f"on {host.name()}, process {pid}"
    pin = Pin(
        kind="build", name=name, process=words, keys=tuple(keys), blobs=tuple(blobs), files=tuple(files)
    )
    try:
        path = write_pin(store, pin)
    except EnvbuildError:
        return None  # a build over a store that only others may write
    freshen(store, pin.keys)
    return path


@contextlib.contextmanager
def holding_files(store: Store, files: Iterable[str]) -> Iterator[None]:
    """Say that this process uses locked files while the block runs; a store that is not there is not made."""
    path = hold_build(store, files=files) if store.root.is_dir() else None
    try:
        yield
    finally:
        release(path)


def release(held: Path | None) -> None:
    """Take back what `hold_build` returned."""
    if held is not None:
        with contextlib.suppress(OSError):
            held.unlink()


def freshen(store: Store, keys: Iterable[str]) -> None:
    """Note that layers are in use, in the times of their records; who may not write them notes nothing."""
    for key in keys:
        with contextlib.suppress(OSError):
            os.utime(store.record_path(key))


def _process_state(words: str, age_s: float) -> State:
    pid, started, where = words.split(" ", 2)
    began = _started(int(pid)) if where == host.name() else "-"
    if began == started != "-":
        return "live"
    hidden = where == host.name() and began == "-" and host.may_run(int(pid))
    return "unreachable" if (hidden or where != host.name()) and age_s < _FOREIGN_BUILD_S else "gone"


def _started(pid: int) -> str:
    """When a process of this host began, in its kernel's ticks (proc(5)): numbers of processes come again."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "-"
    return text.rpartition(")")[2].split()[19]


def _pin(data: Any) -> Pin:  # noqa: ANN401  # whatever JSON holds
    try:
        if data.pop("format") != PIN_FORMAT:
            raise ValueError("a pin of another format")
        lists: dict[str, Any] = {name: tuple(data.pop(name)) for name in _LISTS}
        pin = Pin(**{**data, **lists})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("no pin") from error
    texts = [getattr(pin, name) for name in _TEXTS] + [text for table in lists.values() for text in table]
    if not all(isinstance(text, str) for text in texts) or type(pin.asked) is not bool:
        raise ValueError("a pin of other types")
    if pin.kind not in _KINDS or not _sound(pin):
        raise ValueError("a pin of something else")
    return pin


def _sound(pin: Pin) -> bool:
    digests = all(re.fullmatch(r"sha256:[0-9a-f]{64}", text) for text in (*pin.keys, *pin.blobs))
    hexes = all(re.fullmatch(r"[0-9a-f]{64}", text) for text in pin.files)
    process = pin.kind != "build" or re.fullmatch(r"\d+ (\d+|-) \S.*|\d+ (\d+|-) ", pin.process) is not None
    return digests and hexes and process
