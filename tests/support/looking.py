"""Scan an image and run its preflight in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild.preflight.report import PreflightReport, run_preflight
from envbuild.store.store import Store
from tests.support.images import scan_image


def preflight(
    image: Path, store: Store, *, changed: tuple[str, ...] | None = None, **options: Any
) -> PreflightReport:
    """Return the problems of an image's processes; the options are those of `run_preflight`."""
    return run_preflight(scan_image(image, store, changed=changed), **options)
