"""Ahead: what the last build of a name used is read while its lock is renewed, which waits for an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from envbuild.build.soundness import read_meanwhile
from envbuild.spec.asked import Asked
from envbuild.store.store import LayerRecord
from envbuild.workflows.settings import Settings


def plan_record(asked: Asked, settings: Settings) -> Path:
    """Return where the store remembers the last plan of a spec's name."""
    return settings.store.root / "plans" / f"{asked.spec.name}.json"


def reading_ahead(asked: Asked, settings: Settings) -> AbstractContextManager[None]:
    """Compare layers with their digests while the block runs: most of them are used again."""
    return read_meanwhile(settings.store, _last_parts(asked, settings))


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
