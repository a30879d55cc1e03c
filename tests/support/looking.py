"""Look at an image and judge it in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild.image.model import Manifest
from envbuild.preflight.examine import Preflight
from envbuild.preflight.run import look
from envbuild.store.store import Store


def preflight(
    image: Path, store: Store, *, changed: tuple[str, ...] | None = None, **options: Any
) -> tuple[Manifest, Preflight]:
    """Return what an image says of itself, and what is wrong with its processes."""
    looked = look(image, store, changed=changed)
    return looked.manifest, looked.preflight(**options)
