"""From a lock to a plan: what the image carries of its own is put together here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from envbuild.check.proof import files as proof_files
from envbuild.image.model import Manifest, Part
from envbuild.image.story import manifest_of, root_texts, top_layer
from envbuild.plan.model import BuildPlan
from envbuild.plan.planner import make_plan
from envbuild.store.store import LayerRecord
from envbuild.workflows.lock import Locked


def design(locked: Locked, *, flat: bool) -> BuildPlan:
    """Return the plan of an image."""
    manifest = manifest_of(locked.asked, locked.lock, form=_form(flat))
    metadata = top_layer(locked.asked, locked.lock, manifest, proof=proof_files())
    return make_plan(locked.asked, locked.lock, root_texts=root_texts(), metadata=metadata, flat=flat)


def manifest_with(locked: Locked, parts: list[Part], *, flat: bool) -> Manifest:
    """Return the manifest of an image whose parts are known."""
    return manifest_of(locked.asked, locked.lock, form=_form(flat), parts=parts)


def parts_of(plan: BuildPlan, records: Mapping[str, LayerRecord]) -> list[Part]:
    """Return the parts of an image whose layers are made, the root first.

    Parameters
    ----------
    records : mapping of str to LayerRecord
        Layer's name → what the store holds of it.
    """
    return [
        Part(
            role="root" if layer.name == plan.root else "overlay",
            # Sorted where one holds all, so that a flat image is the same however it came about.
            layers=plan.members[layer.name] if plan.overlays else tuple(sorted(plan.members[layer.name])),
            digest=records[layer.name].blob,
            size_bytes=records[layer.name].size_bytes,
        )
        for layer in plan.parts()
    ]


def _form(flat: bool) -> Literal["layered", "flat"]:
    return "flat" if flat else "layered"
