"""The last plan of each spec's name: what a build will likely need again, and what `plan` compares with."""

from __future__ import annotations

from envbuild.store.store import Store
from envbuild.system.files import NOTE_LIMIT_BYTES, read_small

DIRECTORY = "plans"


def plan_name(name: str) -> str:
    """Return the path in a store of the last plan of a spec's name."""
    return f"{DIRECTORY}/{name}.json"


def last_plan(store: Store, name: str) -> str | None:
    """Return the text of the last plan of a spec's name; None where there is none that can be read."""
    try:
        return read_small(store.root / plan_name(name), limit_bytes=NOTE_LIMIT_BYTES).decode()
    except (OSError, ValueError):
        return None
