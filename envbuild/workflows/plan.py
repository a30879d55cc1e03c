"""Plan: what a build would do, and why; without doing any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.build.run import missing_layers
from envbuild.compat.engine import Verdict
from envbuild.plan.model import Compression
from envbuild.plan.reasons import reasons
from envbuild.store.plans import last_plan
from envbuild.workflows.design import design
from envbuild.workflows.lock import lock_spec
from envbuild.workflows.settings import Settings
from envbuild.workflows.upstreams import with_upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One layer of a plan.

    Attributes
    ----------
    state : str
        ``cached``, ``build``, or ``skip`` for an input of a layer that is cached.
    reason : str
        Why it is built; empty for a cached one.
    """

    name: str
    key: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """A plan for people.

    Attributes
    ----------
    lock_changes : tuple of str
        What a new lock would change.
    image : tuple of str
        The layers of the image, from bottom to top.
    verdicts : tuple of Verdict
        What the rules say of the lock and of its site.
    """

    rows: tuple[PlanRow, ...]
    lock_changes: tuple[str, ...]
    image: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "lock_changes": list(self.lock_changes),
            "layers": [
                {"name": row.name, "key": row.key, "state": row.state, "reason": row.reason}
                for row in self.rows
            ],
            "image": list(self.image),
            "compatibility": [verdict.to_data() for verdict in self.verdicts],
        }


def show_plan(
    spec: Path,
    settings: Settings,
    *,
    compression: Compression = "zstd",
    offline: bool = False,
    upstreams: Sequence[Path] = (),
) -> ShownPlan:
    """Return what a build would do; no file beside the spec or in the store's layers changes."""
    settings = with_upstreams(settings, upstreams)
    state = lock_spec(spec, settings, offline=offline, write=False)
    plan = design(state, compression=compression)
    to_build = {layer.name for layer in missing_layers(plan, settings.store)}
    why = reasons(plan, last_plan(settings.store, state.asked.spec.name))
    rows = []
    for layer in plan.layers:
        if layer.name in to_build:
            rows.append(
                PlanRow(
                    name=layer.name,
                    key=layer.key,
                    state="build",
                    reason=why[layer.name] or "not in the store",
                )
            )
        else:
            cached = settings.store.get(layer.key) is not None
            rows.append(
                PlanRow(name=layer.name, key=layer.key, state="cached" if cached else "skip", reason="")
            )
    return ShownPlan(
        rows=tuple(rows),
        lock_changes=state.changes,
        image=plan.image,
        verdicts=state.verdicts,
    )
