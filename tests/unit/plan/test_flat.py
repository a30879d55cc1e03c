"""The plan of a flat image, whether it was planned so or made from a layered one's."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from envbuild.lock.model import ToolPin
from envbuild.plan.flat import flattened
from envbuild.plan.model import BuildPlan, TextEntry
from envbuild.plan.text import load_plan
from tests.unit.plan.plans import LOCK, MPICH, PYTORCH, asked, plan, sha, source_plan, wheel

TOLD = "/.envbuild/manifest.json"
OTHER = (TextEntry(path="/.envbuild/lock.yaml", content="QQ=="),)
LAYERED = (*OTHER, TextEntry(path=TOLD, content=base64.b64encode(b"layered").decode()))
FLAT = (*OTHER, TextEntry(path=TOLD, content=base64.b64encode(b"flat").decode()))
LINKING = replace(PYTORCH, recipe=PYTORCH.recipe.model_copy(update={"links": {"/opt/a": "b"}}))
CUDA = (*LOCK.python, wheel("nvidia-cublas", "13.0", "accelerator"))


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"what": asked(), "python": (), "system_debs": ()},
        {"what": asked(MPICH, LINKING, files={"a": b"a", "b": b"b"}), "python": CUDA},
        {"tools": (*LOCK.tools, ToolPin(name="installer", version="1", digest="sha256:" + sha("i")))},
    ],
)
def test_a_layered_plan_becomes_the_one_that_is_planned(what: dict[str, object]) -> None:
    made = plan(story=LAYERED, **what)  # type: ignore[arg-type]
    wanted = plan(story=FLAT, flat=True, **what)  # type: ignore[arg-type]
    # As it comes out of an image.
    assert flattened(load_plan(made.to_json()), {TOLD: b"flat"}).to_json() == wanted.to_json()


def test_that_of_a_framework_that_is_built_before_another() -> None:
    """A plan does not tell the order of the spec's recipes, in which their layers lie in a layered image."""
    made, wanted = source_plan(story=LAYERED), source_plan(story=FLAT, flat=True)
    assert flattened(made, {TOLD: b"flat"}).to_json() == wanted.to_json()


def test_a_flat_plan_stays() -> None:
    made = plan(story=FLAT, flat=True)
    assert flattened(made, {TOLD: b"another"}) == made


def test_a_plan_without_a_top_layer_is_none_of_an_image() -> None:
    made = plan()
    layers = tuple(layer for layer in made.layers if layer.name in ("base", "system"))
    other = BuildPlan(
        layers=layers,
        root="base",
        overlays=("system",),
        members={layer.name: (layer.name,) for layer in layers},
    )
    with pytest.raises(ValueError, match="it has no layer `metadata`"):
        flattened(load_plan(other.to_json()), {})
