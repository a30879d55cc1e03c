"""From a lock to a plan: what the image carries of its own is put together here."""

from __future__ import annotations

from typing import Literal

from envbuild.check.proof import files as proof_files
from envbuild.image.model import Manifest, Part
from envbuild.image.story import manifest_of, root_texts, top_layer
from envbuild.plan.model import BuildPlan
from envbuild.plan.planner import make_plan
from envbuild.workflows.lock import Locked


def design(locked: Locked, *, flat: bool) -> BuildPlan:
    """Return the plan of an image."""
    manifest = manifest_of(locked.asked, locked.lock, form=_form(flat))
    metadata = top_layer(locked.asked, locked.lock, manifest, proof=proof_files())
    return make_plan(locked.asked, locked.lock, root_texts=root_texts(), metadata=metadata, flat=flat)


def manifest_with(locked: Locked, parts: list[Part], *, flat: bool) -> Manifest:
    """Return the manifest of an image whose parts are known."""
    return manifest_of(locked.asked, locked.lock, form=_form(flat), parts=parts)


def _form(flat: bool) -> Literal["layered", "flat"]:
    return "flat" if flat else "layered"
