"""From a lock to a plan: what the image carries of its own is put together here."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.image.compose import FinishedLayer
from envbuild.image.embedded import embedded_files
from envbuild.image.story import manifest_of, root_texts, top_layer
from envbuild.plan.model import BuildPlan, Compression
from envbuild.plan.planner import make_plan
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.workflows.lock import Locked


def design(locked: Locked, *, compression: Compression = "zstd") -> BuildPlan:
    """Return the plan of an image."""
    manifest = manifest_of(locked.asked, locked.lock)
    metadata = top_layer(locked.asked, locked.lock, manifest, embedded=embedded_files())
    return make_plan(
        locked.asked, locked.lock, root_texts=root_texts(), metadata=metadata, compression=compression
    )


def finished_layers(records: Iterable[LayerRecord], plan: BuildPlan, store: Store) -> list[FinishedLayer]:
    """Return the layers that an image is composed of, from bottom to top.

    Parameters
    ----------
    records : iterable of LayerRecord
        What the store holds of the layers of the plan's image, in their order.
    """
    return [
        FinishedLayer(
            name=name,
            blob=store.blob_of(record),
            digest=record.blob,
            data=record.data,
            tables=record.tables,
            imported=record.imported,
        )
        for name, record in zip(plan.image, records, strict=True)
    ]
