"""Plan: what builds would do, and why, without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.image.compose import FinishedLayer
from envbuild.image.metadata import embedded_files, manifest_of, root_texts, top_layer
from envbuild.lock.model import all_pins
from envbuild.plan.graph import LayerGraph
from envbuild.plan.model import BuildPlan, Compression, Layer, input_files
from envbuild.plan.planner import make_plan
from envbuild.plan.reasons import reasons
from envbuild.plan.space import made_bytes
from envbuild.resolve.files import FileCache, Pin
from envbuild.rules.judge import RuleResult
from envbuild.store.records import LayerRecord
from envbuild.store.store import Store
from envbuild.system.files import NOTE_LIMIT_BYTES, read_small
from envbuild.workflows.lock import LOCKED_AT_ONCE, Locked, lock_spec, report_choices, upgrades_of
from envbuild.workflows.members import Member, Members
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import with_upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """One layer of a plan."""

    name: str
    key: str
    state: str
    """``cached``, ``build``, or ``skip`` for an input of a cached layer."""
    reason: str
    """Why it is built; empty for other layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a build."""

    layers: tuple[PlannedLayer, ...]
    lock_changes: tuple[str, ...]
    """Changes of a new lock."""
    image: tuple[str, ...]
    """The layers of the image, from bottom to top."""
    files: int = 0
    """Locked files that would be fetched (count)."""
    size_bytes: int = 0
    """Size of these files."""
    rule_results: tuple[RuleResult, ...] = ()
    """The rules on the lock and its site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotal:
    """The cost of building several specs together: each distinct layer and file counts once."""

    layers: int
    """To build."""
    cached: int
    """In the store."""
    files: int
    """To fetch."""
    size_bytes: int
    """Size of these files."""
    store_bytes: int
    """About what the layers need in the store."""


def show_plans(
    specs: Members[None],
    settings: Settings,
    *,
    compression: Compression = "zstd",
    offline: bool = False,
    upstreams: Sequence[Path] = (),
    upgrade: tuple[str, ...] | None = None,
    upgrades_system_alone: bool = False,
) -> tuple[Members[Plan], PlanTotal]:
    """Return what builds would do; locks, images and the layers in the store stay unchanged.

    `upgrade` and `upgrades_system_alone` are those of `lock_spec`.
    """
    settings = with_upstreams(settings, upstreams, offline=offline)
    planner = _Planner(settings.store)
    upgrades = upgrades_of(specs, upgrade, system_alone=upgrades_system_alone)

    def show(spec: Member[None], own: Settings) -> Plan:
        locked = lock_spec(
            spec.path,
            own,
            upgrade=upgrades[spec.path],
            upgrades_system_alone=upgrades_system_alone,
            offline=offline,
            write=False,
        )
        report_choices(locked, own.emit)
        return planner.show(locked, plan_image(locked, compression=compression))

    plans = specs.each(show, settings, threads=LOCKED_AT_ONCE, last=True)
    return plans, planner.total


class _Planner:
    """Judges what plans would build, and asks the store about each layer once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_finished: dict[str, bool] = {}
        self._missing: set[str] = set()
        self._made: dict[str, int] = {}
        self._absent: dict[str, int] = {}

    def _finished(self, key: str) -> bool:
        if key not in self._is_finished:
            self._is_finished[key] = self._store.get(key) is not None
        return self._is_finished[key]

    def show(self, locked: Locked, plan: BuildPlan) -> Plan:
        missing = LayerGraph.of([plan]).needed(self._finished)
        to_build = {layer.name for layer in missing}
        pins = needed_pins(missing, all_pins(locked.lock))
        to_fetch = absent_files(pins, self._store)
        sizes = {pin.sha256: pin.size_bytes for pin in pins}
        for layer in missing:
            if layer.key not in self._missing:
                self._missing.add(layer.key)
                self._made |= made_bytes(layer, sizes)
        self._absent.update((pin.sha256, pin.size_bytes) for pin in to_fetch)
        why = reasons(plan, last_plan(self._store, locked.resolved.spec.name))
        layers = []
        for layer in plan.layers:
            state, reason = "cached", ""
            if layer.name in to_build:
                state, reason = "build", why[layer.name] or "not in the store"
            elif not self._finished(layer.key):
                state = "skip"
            layers.append(PlannedLayer(name=layer.name, key=layer.key, state=state, reason=reason))
        return Plan(
            layers=tuple(layers),
            lock_changes=locked.changes,
            image=plan.image,
            files=len(to_fetch),
            size_bytes=sum(pin.size_bytes for pin in to_fetch),
            rule_results=locked.rule_results,
        )

    @property
    def total(self) -> PlanTotal:
        """The costs of all plans together."""
        return PlanTotal(
            layers=len(self._missing),
            cached=sum(self._is_finished.values()),
            files=len(self._absent),
            size_bytes=sum(self._absent.values()),
            store_bytes=sum(self._made.values()),
        )


def needed_pins(layers: Iterable[Layer], pins: Iterable[Pin]) -> list[Pin]:
    """Return the locked files that layers are built from, each once, in the order of their digests."""
    needed = {file.sha256 for layer in layers for file in input_files(layer.step)}
    by_digest = {pin.sha256: pin for pin in pins if pin.sha256 in needed}
    return [by_digest[digest] for digest in sorted(by_digest)]


def absent_files(pins: Iterable[Pin], store: Store) -> list[Pin]:
    """Return the locked files that the store's cache lacks."""
    cache = FileCache(store.root / "files")
    return [pin for pin in pins if not cache.path(pin).is_file()]


def plan_image(locked: Locked, *, compression: Compression = "zstd") -> BuildPlan:
    """Return the plan of an image."""
    manifest = manifest_of(locked.resolved, locked.lock)
    metadata = top_layer(locked.resolved.recipes, locked.lock, manifest, embedded=embedded_files())
    return make_plan(
        locked.resolved, locked.lock, root_texts=root_texts(), metadata=metadata, compression=compression
    )


def finished_layers(records: Iterable[LayerRecord], plan: BuildPlan, store: Store) -> list[FinishedLayer]:
    """Return the layers of an image from bottom to top, given their records in the same order."""
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


def plan_name(name: str) -> str:
    """Return the path in a store of the last plan for a spec's name."""
    return f"plans/{name}.json"


def last_plan(store: Store, name: str) -> str | None:
    """Return the text of the last plan for a spec's name; None if it cannot be read."""
    try:
        return read_small(store.root / plan_name(name), limit_bytes=NOTE_LIMIT_BYTES).decode()
    except (OSError, ValueError):
        return None
