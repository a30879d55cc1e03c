"""Scan an image and run its preflight in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envbuild.preflight.report import PreflightReport, run_preflight, simulate
from envbuild.store.store import Store
from tests.support.images import scan_image


def preflight(
    image: Path,
    store: Store,
    *,
    changed: tuple[str, ...] | None = None,
    host_libs: Mapping[str, Path] | None = None,
) -> PreflightReport:
    """Return the problems of an image's processes; `host_libs` are those of `simulate`."""
    scan = scan_image(image, store, changed=changed)
    return run_preflight(scan, simulate(scan, host_libs))
