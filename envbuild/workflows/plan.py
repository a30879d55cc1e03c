"""Plan: what a build would do, and why; without doing any of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.build.run import missing_layers
from envbuild.compat.engine import Verdict
from envbuild.plan.reasons import reasons
from envbuild.store.plans import last_plan
from envbuild.workflows.design import design
from envbuild.workflows.lock import lock_spec
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One layer of a plan.

    Attributes
    ----------
    state : str
        ``cached``, ``build``, or ``skip`` where only a merge of it is needed.
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
    root : str
        The layer that becomes the root partition.
    overlays : tuple of str
        The layers that become overlays, from bottom to top.
    verdicts : tuple of Verdict
        What the rules say of the lock and of its site.
    """

    rows: tuple[PlanRow, ...]
    lock_changes: tuple[str, ...]
    root: str
    overlays: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "lock_changes": list(self.lock_changes),
            "layers": [
                {"name": row.name, "key": row.key, "state": row.state, "reason": row.reason}
                for row in self.rows
            ],
            "root": self.root,
            "overlays": list(self.overlays),
            "compatibility": [verdict.to_data() for verdict in self.verdicts],
        }


def show_plan(spec: Path, settings: Settings, *, flat: bool = False, offline: bool = False) -> ShownPlan:
    """Return what a build would do; no file beside the spec or in the store's layers changes."""
    state = lock_spec(spec, settings, offline=offline, write=False, layered=not flat)
    plan = design(state, flat=flat)
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
        root=plan.root,
        overlays=plan.overlays,
        verdicts=state.verdicts,
    )
