"""What is told at each build of a store that everybody may write to."""

from __future__ import annotations

from envbuild.events import Warned
from envbuild.store.store import Store
from envbuild.system.exposure import closing, is_open_to_all


def exposed(store: Store) -> tuple[Warned, ...]:
    """Return the warning that a store deserves into which everybody may put layers; a few looks."""
    if not is_open_to_all(store.root):
        return ()
    text = f"everybody on this machine may write to the store `{store.root}`, and so into images"
    return (Warned(text=text, hint=f"`{closing(store.root)}`"),)
