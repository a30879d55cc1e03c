"""The one file system of a flat image: as it is planned, and as a layered image becomes it. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace

from envbuild.plan.grouping import ACCELERATOR, LARGE
from envbuild.plan.model import BuildPlan, FilesStep, Layer, MergeStep, Tool, layer_key

_TOP = "metadata"
# Layers commute, so their order is for people and for the key alone: kinds, as they lie in a layered image.
# Within a kind it is that of the plan, which is all that an image tells of its spec.
_KINDS = (
    ("base",),
    ("system",),
    (ACCELERATOR,),
    ("mpi",),
    ("framework",),
    ("links",),
    (LARGE,),
    ("python",),
    ("venv",),
    ("files",),
    (_TOP,),
)


def merge(names: Sequence[str], layers: Sequence[Layer], tools: tuple[Tool, ...]) -> Layer:
    """Return the layer that holds some others, in order."""
    by_name = {layer.name: layer for layer in layers}
    held = [by_name[name] for name in names]
    # What is merged itself need not exist for that: its pieces are merged at once.
    pieces = [
        piece
        for layer in held
        for piece in (
            [by_name[name] for name in layer.inputs] if isinstance(layer.step, MergeStep) else [layer]
        )
    ]
    step = MergeStep(tools=tools)
    return Layer(
        name="+".join(names),
        key=layer_key(step, pieces),
        step=step,
        inputs=tuple(piece.name for piece in pieces),
    )


def flat_plan(layers: Sequence[Layer], tools: tuple[Tool, ...]) -> BuildPlan:
    """Return the plan of an image that holds all layers but those of builds, in one file system.

    Parameters
    ----------
    tools : tuple of Tool
        What packs it.
    """
    ranked = [(_rank(layer.name), layer.name) for layer in layers]
    held = tuple(name for rank, name in sorted(ranked, key=lambda pair: pair[0]) if rank < len(_KINDS))
    merged = merge(held, layers, tools)
    return BuildPlan(layers=(*layers, merged), root=merged.name, overlays=(), members={merged.name: held})


def flattened(plan: BuildPlan, changed: Mapping[str, bytes]) -> BuildPlan:
    """Return the plan of the flat image of a layered one's lock; that of a flat one is returned as it is.

    Parameters
    ----------
    changed : mapping of str to bytes
        Path in the top layer → what its file has instead: the image says there which form it has.

    Raises
    ------
    ValueError
        It has no top layer.
    """
    if not plan.overlays:
        return plan
    used = {name for layer in plan.layers for name in (*layer.inputs, *layer.needs)}
    groups = {name for name in plan.overlays if len(plan.members[name]) > 1} - used
    layers = [_with_files(layer, changed) for layer in plan.layers if layer.name not in groups]
    tools = next((layer.step.tools for layer in layers if layer.name == _TOP), None)
    if tools is None:
        raise ValueError(f"it has no layer `{_TOP}`")
    return flat_plan(layers, tools)


def _rank(name: str) -> int:
    """Return which kind a layer is of, from bottom to top; beyond all of them for what no image holds."""
    kind = name.partition(":")[0]
    for rank, kinds in enumerate(_KINDS):
        if name in kinds or kind in kinds:
            return rank
    return len(_KINDS)


def _with_files(layer: Layer, changed: Mapping[str, bytes]) -> Layer:
    if layer.name != _TOP or not isinstance(layer.step, FilesStep):
        return layer
    files = tuple(
        replace(entry, content=base64.b64encode(changed[entry.path]).decode())
        if entry.path in changed
        else entry
        for entry in layer.step.files
    )
    step = replace(layer.step, files=files)
    return replace(layer, step=step, key=layer_key(step, ()))
