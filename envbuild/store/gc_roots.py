"""Who needs what in a store: `prune` leaves what a root reaches.

A root is a small file that names an image, or a lock that somebody wants to keep, with the layers and locked
files that it needs. An image's root counts as long as that image is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StrictBool, StringConstraints

from envbuild.errors import RequestError
from envbuild.store.store import Store
from envbuild.system.files import read_small

DIRECTORY = "roots"
_LIMIT_BYTES = 16 << 20

State = Literal["live", "gone", "unreachable"]
_Key = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Root(BaseModel):
    """An image or lock, and what it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    path: str
    """Absolute path of the image or lock."""
    pinned: StrictBool = False
    """Whether somebody asked to keep what it needs, whatever becomes of it."""
    digest: str = ""
    """``sha256:…``: the identity of the image; empty of a lock."""
    spec: str = ""
    """The spec that builds the image again; empty where none is known."""
    keys: tuple[_Key, ...] = ()
    """The layers, as ``sha256:…``, sorted."""
    files: tuple[_Hex, ...] = ()
    """The locked files, as hex digests, sorted."""

    @property
    def name(self) -> str:
        """Its path in a store."""
        words = json.dumps([self.path, self.pinned])
        return f"{DIRECTORY}/{hashlib.sha256(words.encode()).hexdigest()}.json"

    @property
    def label(self) -> str:
        """What people call it."""
        is_lock = self.path.endswith((".yaml", ".yml"))
        kind = "image" if self.digest else "lock" if is_lock else "layers of"
        return f"{kind} {self.path}" + (" (pinned)" if self.pinned else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRoot:
    """A root in a store, and what became of its image."""

    root: Root
    state: State
    """``live``; ``gone``; or ``unreachable``, which counts as live: its disk may not be mounted."""
    file: Path
    """Its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Layer key or image digest, and hex digest of a locked file → labels of what needs it, sorted."""

    keys: dict[str, tuple[str, ...]]
    files: dict[str, tuple[str, ...]]


def add_root(store: Store, root: Root) -> None:
    """Record what an image or lock needs; nothing is written if that is recorded already.

    Raises
    ------
    MachineError
        The store cannot be written, or the disk is full.
    """
    with contextlib.suppress(OSError, ValueError):
        if read_root(store.root / root.name) == root:
            return
    # Not by pydantic, which writes no path whose name is no UTF-8.
    store.write(root.name, json.dumps(root.model_dump()) + "\n")


def read_root(path: Path) -> Root:
    """Read a root.

    Raises
    ------
    ValueError
        It is damaged, or none.
    OSError
        It cannot be read.
    """
    try:
        return Root.model_validate(json.loads(read_small(path, limit_bytes=_LIMIT_BYTES)))
    except (ValueError, RecursionError) as error:
        raise ValueError("it is no root of this version") from error


def root_files(store: Store) -> list[Path]:
    """Return the files of all roots, sorted by name."""
    return sorted((store.root / DIRECTORY).glob("*.json"))


def find_roots(store: Store, identify: Callable[[Path], str | None]) -> tuple[StoredRoot, ...]:
    """Return all roots by label.

    Parameters
    ----------
    identify : callable
        Path of an image → the digest that it bears now; None where there is none. May raise OSError where
        that cannot be found out.

    Raises
    ------
    RequestError
        A root cannot be read: what it needs is not known.
    """
    roots = []
    for path in root_files(store):
        try:
            root = read_root(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise RequestError(
                f"`{path}` cannot be read: {error}",
                hint="remove it, and build or pin again what it was for; nothing was removed",
            ) from error
        roots.append(StoredRoot(root=root, state=_state(root, identify), file=path))
    return tuple(sorted(roots, key=lambda stored: (stored.root.label, stored.file.name)))


def needs_of(roots: Iterable[StoredRoot]) -> Needs:
    """Return what roots need whose images are not gone."""
    keys: dict[str, set[str]] = {}
    files: dict[str, set[str]] = {}
    for stored in roots:
        if stored.state == "gone":
            continue
        for key in filter(None, (*stored.root.keys, stored.root.digest)):
            keys.setdefault(key, set()).add(stored.root.label)
        for file in stored.root.files:
            files.setdefault(file, set()).add(stored.root.label)
    return Needs(keys=_sorted(keys), files=_sorted(files))


def remove_roots(roots: Iterable[StoredRoot]) -> None:
    """Remove roots; one that is gone is no error.

    Raises
    ------
    OSError
        One cannot be removed.
    """
    for stored in roots:
        stored.file.unlink(missing_ok=True)


def _state(root: Root, identify: Callable[[Path], str | None]) -> State:
    if root.pinned:
        return "live"
    path = Path(root.path)
    try:
        digest = identify(path)
    except OSError:
        return "unreachable"
    # A parent that is missing too may be on a disk that is not mounted; so may be what a link leads to.
    if digest is None and not os.path.exists(path.parent):  # noqa: PTH110  # that of a Path raises
        return "unreachable"
    return "live" if digest == root.digest else "gone"


def _sorted(labels: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(each)) for name, each in sorted(labels.items())}
