"""Plan: what a build would do, and why; without doing any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.build.run import missing_layers
from envbuild.plan.model import Compression
from envbuild.plan.reasons import reasons
from envbuild.rules.judge import Verdict
from envbuild.store.plans import last_plan
from envbuild.workflows.design import design
from envbuild.workflows.lock import lock_spec
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import with_upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """One layer of a plan."""

    name: str
    key: str
    state: str
    """``cached``, ``build``, or ``skip`` for an input of a layer that is cached."""
    reason: str
    """Why it is built; empty for a cached one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a build would do."""

    layers: tuple[PlannedLayer, ...]
    lock_changes: tuple[str, ...]
    """Changes of a new lock."""
    image: tuple[str, ...]
    """The layers of the image, from bottom to top."""
    verdicts: tuple[Verdict, ...] = ()
    """Of the rules on the lock and its site."""


def show_plan(
    spec: Path,
    settings: Settings,
    *,
    compression: Compression = "zstd",
    offline: bool = False,
    upstreams: Sequence[Path] = (),
) -> Plan:
    """Return what a build would do; no file beside the spec or in the store's layers changes."""
    settings = with_upstreams(settings, upstreams)
    locked = lock_spec(spec, settings, offline=offline, write=False)
    plan = design(locked, compression=compression)
    to_build = {layer.name for layer in missing_layers(plan, settings.store)}
    why = reasons(plan, last_plan(settings.store, locked.asked.spec.name))
    layers = []
    for layer in plan.layers:
        state, reason = "cached", ""
        if layer.name in to_build:
            state, reason = "build", why[layer.name] or "not in the store"
        elif settings.store.get(layer.key) is None:
            state = "skip"
        layers.append(PlannedLayer(name=layer.name, key=layer.key, state=state, reason=reason))
    return Plan(
        layers=tuple(layers),
        lock_changes=locked.changes,
        image=plan.image,
        verdicts=locked.verdicts,
    )
