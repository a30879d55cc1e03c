"""Layers that a build takes from the store still hold the bytes that were published."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from envbuild.build.run import made_from, missing_layers
from envbuild.events import Emit, Warned
from envbuild.plan.model import BuildPlan, Layer
from envbuild.store.store import LayerRecord, Store
from envbuild.system import host, spans
from envbuild.system.threads import meanwhile

_SPAN = "verify layers of the store"


def drop_damaged(plan: BuildPlan, store: Store, emit: Emit, *, rebuild: bool = False) -> tuple[Layer, ...]:
    """Read the layers that missing ones are made from, and take damaged ones away: they are missing then.

    Returns
    -------
    tuple of Layer
        What is missing; no other layer is read for it.
    """
    while True:
        missing = missing_layers(plan, store, rebuild=rebuild)
        made = {layer.name for layer in missing}
        if not _drop(plan, store, emit, made_from(missing) - made):
            return missing


def drop_damaged_parts(plan: BuildPlan, store: Store, emit: Emit, *, made: Collection[Layer]) -> bool:
    """Read what the image is composed of, and take damaged layers away; return whether there were any.

    Parameters
    ----------
    made : collection of Layer
        What was built just now.
    """
    names = {part.name for part in plan.parts()} - {layer.name for layer in made}
    return _drop(plan, store, emit, names)


def read_meanwhile(store: Store, records: Iterable[LayerRecord]) -> AbstractContextManager[None]:
    """Compare layers with their digests while the block runs.

    What was found whole the store need not read again; all else is left to who uses it. The end of the block
    waits for nothing.
    """

    def read(over: threading.Event) -> None:
        with spans.span(_SPAN):
            for record in records:
                if over.is_set():
                    return
                store.is_intact(record, over)

    return meanwhile(read)


def _drop(plan: BuildPlan, store: Store, emit: Emit, names: Collection[str]) -> bool:
    records = [record for name in sorted(names) if (record := store.get(plan.layer(name).key)) is not None]
    with spans.span(_SPAN), ThreadPoolExecutor(max_workers=host.cores()) as pool:
        intact = list(pool.map(store.is_intact, records))
    damaged = [record for record, good in zip(records, intact, strict=True) if not good]
    for record in damaged:
        # Whoever shares the store may have made it anew by now.
        if store.get(record.key) == record and not store.is_intact(record):
            emit(Warned(text=f"layer {record.name} in the store is damaged; it is built again"))
            store.discard(record)
    return bool(damaged)
