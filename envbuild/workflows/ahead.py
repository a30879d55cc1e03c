"""Ahead: what need not wait for an index, or for the layers that are built, is done meanwhile."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envbuild.build.soundness import read_meanwhile
from envbuild.image.half import Half
from envbuild.image.sifwriter import places
from envbuild.plan.model import BuildPlan, Layer
from envbuild.spec.asked import Asked
from envbuild.store.plans import last_plan
from envbuild.store.store import LayerRecord, Store
from envbuild.system import spans
from envbuild.system.threads import meanwhile
from envbuild.workflows.settings import Settings

if TYPE_CHECKING:
    from envbuild.check.preflight.scan import LayerScan

# Times the size of what is copied, which must be free.
_ROOM = 4


@dataclass(frozen=True, slots=True)
class Ahead:
    """What there is of an image before all its layers are.

    Attributes
    ----------
    half : Half
        The file, to which layers may have been copied.
    scans : dict of str to LayerScan
        Digest of a layer → what the store knows of it.
    """

    half: Half
    scans: dict[str, LayerScan] = field(default_factory=dict)

    @contextlib.contextmanager
    def working(self, plan: BuildPlan, missing: Collection[Layer], store: Store) -> Iterator[None]:
        """Do what can be done with the layers that are not missing, while the block runs."""
        with (
            looking_ahead(self.scans, plan, missing, store),
            copying_ahead(self.half, plan, missing, store),
        ):
            yield


def reading_ahead(asked: Asked, settings: Settings) -> AbstractContextManager[None]:
    """Compare layers with their digests while the block runs: most of them are used again."""
    return read_meanwhile(settings.store, _last_parts(asked, settings))


def _last_parts(asked: Asked, settings: Settings) -> Iterator[LayerRecord]:
    try:
        data: Any = json.loads(last_plan(settings.store, asked.spec.name) or "")
        parts = {data["root"], *data["overlays"]}
        keys = [layer["key"] for layer in data["layers"] if layer["name"] in parts]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for key in sorted(keys):
        record = settings.store.get(key)
        if record is not None:
            yield record


def looking_ahead(
    scans: dict[str, LayerScan], plan: BuildPlan, missing: Collection[Layer], store: Store
) -> AbstractContextManager[None]:
    """Fill in what the store knows of the layers that are there, while the block runs.

    What looks at images is a fifth of all that a build imports, and needed last: it is imported here.
    """

    def read(over: threading.Event) -> None:
        from envbuild.check.preflight.run import kept_scan  # noqa: PLC0415  # see above

        for layer in plan.parts():
            if over.is_set():
                return
            record = store.get(layer.key)
            if layer in missing or record is None:
                continue
            scan = kept_scan(store, record.blob)
            if scan is not None:
                scans[record.blob] = scan

    return meanwhile(read)


def copying_ahead(
    half: Half, plan: BuildPlan, missing: Collection[Layer], store: Store
) -> AbstractContextManager[None]:
    """Copy what lies in the image before the first missing layer while the block runs."""
    known = []
    for layer in plan.parts():
        record = store.get(layer.key)
        if layer in missing or record is None:
            break
        known.append(record)
    offsets = places(record.size_bytes for record in known)

    def copy(over: threading.Event) -> None:
        # What is built needs room, too, and comes first.
        if half.room_bytes() < _ROOM * sum(record.size_bytes for record in known):
            return
        with spans.span("compose ahead"):
            for record, offset in zip(known, offsets, strict=True):
                half.copy(store.blob_path(record.blob), record.size_bytes, offset, over=over)
                if over.is_set():
                    return
                half.save()

    return meanwhile(copy)
