"""Where a store takes finished layers of others from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from envbuild.store.records import LayerRecord

if TYPE_CHECKING:
    from envbuild.store.store import Store


class Upstream(Protocol):
    """Finished layers of others; several threads may ask.

    Trust is the upstream's matter: a layer that it returns counts as one that was built here.
    """

    def get(self, key: str) -> LayerRecord | None:
        """Return the finished layer of a key; None if there is none that counts."""

    def fetch(self, key: str, store: Store, advanced: Callable[[int], None]) -> bool:
        """Bring a layer that `get` returned to this machine: `blob` has it then, or the user's `store`.

        Returns False if its bytes are not those of the record, or do not come: `get` returns None then.
        `advanced` gets the number of bytes of each piece that comes.
        """

    def blob(self, digest: str) -> Path | None:
        """Return the path of a blob that is on this machine, and not in the user's store; None for others."""
