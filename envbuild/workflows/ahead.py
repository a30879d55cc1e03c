"""Ahead: what the last build of a name used is read while its lock is renewed, which waits for an index."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from envbuild.spec.asked import Asked
from envbuild.store.store import LayerRecord
from envbuild.system import spans
from envbuild.workflows.settings import Settings


def plan_record(asked: Asked, settings: Settings) -> Path:
    """Return where the store remembers the last plan of a spec's name."""
    return settings.store.root / "plans" / f"{asked.spec.name}.json"


@contextlib.contextmanager
def reading_ahead(asked: Asked, settings: Settings) -> Iterator[None]:
    """Compare layers with their digests while the block runs: most of them are used again.

    What the store has found whole it need not read again. Whatever else is found is left to who uses it.
    """
    over = threading.Event()

    def read() -> None:
        with spans.span("verify layers of the store"):
            for record in _last_parts(asked, settings):
                if over.is_set():
                    return
                settings.store.is_intact(record)

    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(read)
        try:
            yield
        finally:
            over.set()


def _last_parts(asked: Asked, settings: Settings) -> Iterator[LayerRecord]:
    try:
        data: Any = json.loads(plan_record(asked, settings).read_text(encoding="utf-8"))
        parts = {data["root"], *data["overlays"]}
        keys = [layer["key"] for layer in data["layers"] if layer["name"] in parts]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for key in sorted(keys):
        record = settings.store.get(key)
        if record is not None:
            yield record
