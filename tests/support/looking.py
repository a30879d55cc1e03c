"""Look at an image and judge it in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild.check.preflight.examine import Preflight
from envbuild.check.preflight.run import look
from envbuild.image.model import Manifest
from envbuild.store.store import Store


def preflight(
    image: Path, store: Store, *, intact: bool | None = None, **options: Any
) -> tuple[Manifest, Preflight]:
    """Return what an image says of itself, and what is wrong with its processes."""
    looked = look(image, store, intact=intact)
    return looked.manifest, looked.preflight(**options)
