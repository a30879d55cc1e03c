"""The plan of an image that gains wheels and files: that of its spec with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from envbuild.lock.model import ToolPin
from envbuild.plan.model import (
    PACKERS,
    BuildPlan,
    FilesStep,
    InlineFile,
    Layer,
    layer_key,
)

_WHEEL = "wheel:"
_BELOW = ("base", "system")
_ABOVE = ("files", "metadata")


def extended_plan(
    plan: BuildPlan,
    *,
    wheels: Sequence[Layer],
    dropped: Collection[str],
    files: Sequence[InlineFile],
    metadata: Sequence[InlineFile],
    tools: Sequence[ToolPin],
) -> BuildPlan:
    """Return a plan with more in it, in the order of `envbuild.plan.planner.make_plan`.

    A wheel replaces that of another version. `dropped` are distributions that nothing needs any more, `files`
    come beside those of the spec, `metadata` are all files of the top layer, and `tools` are those of this
    machine.
    """
    layers = {layer.name: layer for layer in (*plan.layers, *wheels)}
    compression = layers["base"].compression
    packer = tuple(tool for tool in tools if tool.name == PACKERS[compression])
    targets = {file.path: file for file in (*written_files(plan, "files"), *files)}
    for name, entries in zip(_ABOVE, (targets.values(), metadata), strict=True):
        step = FilesStep(files=tuple(sorted(entries, key=lambda entry: entry.path)), tools=packer)
        layers[name] = Layer(name=name, key=layer_key(step, ()), step=step)
    for name in (*_ABOVE, *(wheel.name for wheel in wheels)):
        layer = layers[name]
        key = layer_key(layer.step, [layers[below] for below in layer.inputs], compression)
        layers[name] = layer.model_copy(update={"key": key, "compression": compression})
    above = _ABOVE if targets else ("metadata",)
    left_out = {*_ABOVE, *(f"{_WHEEL}{name}" for name in dropped)}

    def ordered(names: Iterable[str]) -> list[str]:
        remaining = [name for name in names if name not in left_out]
        below = [name for name in remaining if name in _BELOW]
        wheel_names = {
            name for name in (*remaining, *(wheel.name for wheel in wheels)) if name.startswith(_WHEEL)
        }
        others = [name for name in remaining if name not in wheel_names and name not in below]
        return [*below, *sorted(wheel_names, key=lambda name: name.removeprefix(_WHEEL)), *others, *above]

    return BuildPlan(
        layers=tuple(layers[name] for name in ordered(layer.name for layer in plan.layers)),
        image=tuple(ordered(plan.image)),
        tools=packer,
    )


def written_files(plan: BuildPlan, name: str) -> tuple[InlineFile, ...]:
    """Return the files of a layer that is written as it is; none if the plan has no such layer."""
    steps = (layer.step for layer in plan.layers if layer.name == name)
    return next((step.files for step in steps if isinstance(step, FilesStep)), ())
