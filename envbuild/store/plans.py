"""The last plan of each spec's name: what a build will likely need again, and what `plan` compares with."""

from __future__ import annotations

from pathlib import Path

from envbuild.store.store import Store
from envbuild.system.files import NOTE_LIMIT_BYTES, read_small

DIRECTORY = "plans"


def plan_path(store: Store, name: str) -> Path:
    """Return where the last plan of a spec's name lies, or would lie."""
    return store.root / DIRECTORY / f"{name}.json"


def last_plan(store: Store, name: str) -> str | None:
    """Return the text of the last plan of a spec's name; None where there is none that can be read."""
    try:
        return read_small(plan_path(store, name), limit_bytes=NOTE_LIMIT_BYTES).decode()
    except (OSError, ValueError):
        return None
