"""Layers that a build takes from the store still hold the bytes that were published."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from envbuild.build.run import missing_layers
from envbuild.events import Emit, Warned
from envbuild.plan.model import BuildPlan, Layer
from envbuild.store.store import LayerRecord, Store
from envbuild.system import host, spans


def drop_damaged(plan: BuildPlan, store: Store, emit: Emit, *, rebuild: bool = False) -> None:
    """Read the layers that work is about to begin with, and take damaged ones away: they are missing then.

    Where layers have to be built, that is what these are made from; `compared_meanwhile` reads the rest.
    Where none has to, it is all that the image is composed of.
    """
    while True:
        missing = missing_layers(plan, store, rebuild=rebuild)
        used = _made_from(missing) if missing else _parts(plan)
        damaged = _damaged(plan, store, used - {layer.name for layer in missing})
        if not damaged:
            return
        discard(damaged, store, emit)


@contextlib.contextmanager
def compared_meanwhile(
    plan: BuildPlan, store: Store, missing: Collection[Layer]
) -> Iterator[Callable[[], list[LayerRecord]]]:
    """Read, while the block builds what is missing, the layers that the image is only composed of.

    Parameters
    ----------
    missing : collection of Layer
        What is built; what it is made from was read before.

    Yields
    ------
    callable
        Returns those that are damaged, once all are read.
    """
    made = {layer.name for layer in missing}
    with ThreadPoolExecutor(max_workers=1) as pool:
        reading = pool.submit(_damaged, plan, store, _parts(plan) - made - _made_from(missing))
        yield reading.result


def discard(damaged: Collection[LayerRecord], store: Store, emit: Emit) -> None:
    """Take damaged layers out of the store, and say so."""
    for record in damaged:
        emit(Warned(text=f"layer {record.name} in the store is damaged; it is built again"))
        store.discard(record)


def _parts(plan: BuildPlan) -> set[str]:
    return {part.name for part in plan.parts()}


def _made_from(layers: Collection[Layer]) -> set[str]:
    return {name for layer in layers for name in (*layer.inputs, *layer.needs)}


def _damaged(plan: BuildPlan, store: Store, names: Collection[str]) -> list[LayerRecord]:
    records = [record for name in sorted(names) if (record := store.get(plan.layer(name).key)) is not None]
    with spans.span("verify layers of the store"), ThreadPoolExecutor(max_workers=host.cores()) as pool:
        intact = list(pool.map(store.is_intact, records))
    return [record for record, good in zip(records, intact, strict=True) if not good]
