"""Roots: what images and locks need in a store. `prune` leaves what a root reaches.

A root is a small file with the path of an image, or of a pinned lock, and the layers and locked files that it
needs. An image's root counts as long as the image exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, StrictBool, StringConstraints, ValidationError

from envbuild.errors import RequestError
from envbuild.formats import format_error, hint_for
from envbuild.store.store import Store
from envbuild.system.files import read_small

DIRECTORY = "roots"
ROOT_FORMAT: Final = 1
_LIMIT_BYTES = 16 << 20

State = Literal["live", "gone", "unreachable"]
_Key = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Root(BaseModel):
    """An image or lock, and what it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = ROOT_FORMAT
    path: str
    """Absolute path of the image or lock."""
    pinned: StrictBool = False
    """Whether a user asked to keep what it needs, even without its image."""
    digest: str = ""
    """``sha256:…``: the identity of the image; empty for a lock."""
    spec: str = ""
    """The spec that builds the image again; empty if unknown."""
    keys: tuple[_Key, ...] = ()
    """The layers, as ``sha256:…``, sorted."""
    files: tuple[_Hex, ...] = ()
    """The locked files, as hex digests, sorted."""

    @property
    def name(self) -> str:
        """Path of its file in a store."""
        words = json.dumps([self.path, self.pinned])
        return f"{DIRECTORY}/{hashlib.sha256(words.encode()).hexdigest()}.json"

    @property
    def label(self) -> str:
        """Its name in messages."""
        is_lock = self.path.endswith((".yaml", ".yml"))
        kind = "image" if self.digest else "lock" if is_lock else "layers of"
        return f"{kind} {self.path}" + (" (pinned)" if self.pinned else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRoot:
    """A root in a store, and the state of its image."""

    root: Root
    state: State
    """``unreachable`` counts as live: the image's disk may not be mounted."""
    file: Path


Needs = Mapping[str, tuple[str, ...]]
"""Layer key, image digest or hex digest of a locked file → labels of the roots, sorted, that need it."""


def add_root(store: Store, root: Root) -> None:
    """Record what an image or lock needs, unless that is recorded already."""
    with contextlib.suppress(OSError, ValueError):
        if read_root(store.root / root.name) == root:
            return
    # Not with pydantic, which rejects paths that are not UTF-8.
    store.write(root.name, json.dumps(root.model_dump()) + "\n")


def read_root(path: Path) -> Root:
    """Read a root; FormatError if it has another format, ValueError if it is damaged."""
    try:
        data = json.loads(read_small(path, limit_bytes=_LIMIT_BYTES))
        return Root.model_validate(data)
    except ValidationError as error:
        raise format_error(error, ROOT_FORMAT) or ValueError("it is not a root") from None
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not a root") from error


def root_files(store: Store) -> list[Path]:
    """Return the files of all roots, sorted by name."""
    return sorted((store.root / DIRECTORY).glob("*.json"))


def find_roots(store: Store, identify: Callable[[Path], str | None]) -> tuple[StoredRoot, ...]:
    """Return all roots, sorted by label; RequestError if one cannot be read.

    `identify` returns the digest of the image at a path, None if there is none, and may raise OSError if it
    cannot be read.
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
                hint=hint_for(
                    error, "remove it, and build or pin again what it was for; nothing was removed"
                ),
            ) from error
        roots.append(StoredRoot(root=root, state=_state(root, identify), file=path))
    return tuple(sorted(roots, key=lambda stored: (stored.root.label, stored.file.name)))


def needs_of(roots: Iterable[StoredRoot]) -> Needs:
    """Return what all roots need whose image is not gone."""
    labels: dict[str, set[str]] = {}
    for root in (stored.root for stored in roots if stored.state != "gone"):
        for name in filter(None, (*root.keys, *root.files, root.digest)):
            labels.setdefault(name, set()).add(root.label)
    return {name: tuple(sorted(needed_by)) for name, needed_by in sorted(labels.items())}


def remove_roots(roots: Iterable[StoredRoot]) -> None:
    """Remove roots; missing files are ignored."""
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
    # A missing parent, or the target of a link, may be on a disk that is not mounted.
    if digest is None and not os.path.exists(path.parent):  # noqa: PTH110  # Path.exists may raise
        return "unreachable"
    return "live" if digest == root.digest else "gone"
