"""Cache pin and unpin: keep what an image, a lock or a layer needs, whatever becomes of them."""

from __future__ import annotations

import re
from pathlib import Path

from envbuild.errors import MachineError, RequestError, did_you_mean
from envbuild.lock.text import load
from envbuild.store.inventory import items
from envbuild.store.pins import Pin, held, write_pin
from envbuild.store.prune import forget
from envbuild.store.store import Store
from envbuild.system.files import is_directory, read_input
from envbuild.workflows.keeping import identify, pin_of_image, pin_of_lock
from envbuild.workflows.settings import Settings

_LOCK_LIMIT_BYTES = 16 << 20


def pin_thing(thing: str, settings: Settings) -> Pin:
    """Keep what an image, a lock or a layer needs until `unpin`.

    Parameters
    ----------
    thing : str
        Path of an image or lock, or a layer's key, or the beginning of one (12 digits or more).

    Raises
    ------
    RequestError
        It is none of these.
    MachineError
        The store cannot be written.
    """
    settings.store.check_is_one()
    pin = _pin_of(thing, settings.store)
    write_pin(settings.store, pin)
    return pin


def unpin_thing(thing: str, settings: Settings) -> tuple[Pin, ...]:
    """Take back what `pin_thing` did, and forget an image that cannot be reached any more.

    Raises
    ------
    RequestError
        Nothing of that name is pinned.
    MachineError
        The store cannot be written.
    """
    pins = held(settings.store, identify)
    names = {thing, str(Path(thing).absolute())}
    key = re.fullmatch(r"(?:sha256:)?([0-9a-f]{12,64})", thing)
    wanted = [
        each
        for each in pins
        if (each.pin.asked or each.state != "live")
        and (each.pin.name in names or (key and each.pin.name.startswith(f"sha256:{key[1]}")))
    ]
    if not wanted:
        known = [each.pin.name for each in pins if each.pin.asked]
        raise RequestError(
            f"nothing named `{thing}` is pinned",
            hint=did_you_mean(thing, known) or "`envbuild cache ls` lists what is",
        )
    try:
        forget([each.path for each in wanted])
    except OSError as error:
        raise MachineError(
            f"`{error.filename}` cannot be removed: {error.strerror}",
            hint="see who owns it: whoever may write to its directory can remove it",
        ) from error
    return tuple(each.pin for each in wanted)


def _pin_of(thing: str, store: Store) -> Pin:
    path = Path(thing)
    if path.is_file():
        if path.name.endswith((".yaml", ".yml")):
            return pin_of_lock(path, load(read_input(path, limit_bytes=_LOCK_LIMIT_BYTES), path), store)
        return pin_of_image(path)
    key = re.fullmatch(r"(?:sha256:)?([0-9a-f]{12,64})", thing)
    if key is None or is_directory(path):
        raise RequestError(
            f"`{thing}` is neither an image, a lock nor a layer's key",
            hint="`envbuild cache ls` lists layers and their keys",
        )
    found = [item for item in items(store) if item.kind == "layer" and item.id[7:].startswith(key[1])]
    if len(found) != 1:
        problem = f"{len(found)} layers have keys that begin with" if found else "no layer of the store is"
        raise RequestError(f"{problem} `{thing}`", hint="`envbuild cache ls` lists layers and their keys")
    return Pin(kind="key", name=found[0].id, asked=True, keys=(found[0].id,), blobs=(found[0].blob,))
