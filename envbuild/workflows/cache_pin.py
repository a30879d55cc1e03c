"""Cache pin and unpin: keep what an image or a lock needs, whatever becomes of it."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError, did_you_mean
from envbuild.lock.text import load
from envbuild.store.roots import Root, add_root, find_roots, remove_roots
from envbuild.system.files import read_input
from envbuild.workflows.keeping import identify, pinned_image, pinned_lock
from envbuild.workflows.settings import Settings

_LOCK_LIMIT_BYTES = 16 << 20


def pin(path: Path, settings: Settings) -> Root:
    """Keep what an image or a lock needs until `unpin`.

    Raises
    ------
    RequestError
        It is neither, or the store is not the user's own.
    MachineError
        The store cannot be written.
    """
    if path.name.endswith((".yaml", ".yml")):
        lock = load(read_input(path, limit_bytes=_LOCK_LIMIT_BYTES), path)
        root = pinned_lock(path, lock, settings.store)
    elif path.is_file():
        root = pinned_image(path)
    else:
        raise RequestError(
            f"`{path}` is neither an image nor a lock", hint="name the file of one: `IMAGE.sif`, `LOCK.yaml`"
        )
    with settings.store.in_use():
        add_root(settings.store, root)
    return root


def unpin(path: Path, settings: Settings) -> tuple[Root, ...]:
    """Take back what `pin` did, and forget an image that cannot be reached any more.

    Raises
    ------
    RequestError
        Nothing of that name is pinned, or the store is not the user's own.
    OSError
        The store cannot be written.
    """
    roots = find_roots(settings.store, identify)
    pinned = [stored for stored in roots if stored.root.pinned or stored.state != "live"]
    wanted = [stored for stored in pinned if stored.root.path == str(path.absolute())]
    if not wanted:
        known = [stored.root.path for stored in pinned]
        raise RequestError(
            f"nothing named `{path}` is pinned",
            hint=did_you_mean(str(path), known) or "`envbuild cache ls` lists what is",
        )
    remove_roots(wanted)
    return tuple(stored.root for stored in wanted)
