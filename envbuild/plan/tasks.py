"""Divides the missing layers of many plans into tasks for machines that share a store, but no locks. Pure.

Each layer belongs to one task, so that nothing is built twice. Tasks of a level need layers of lower levels
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envbuild.plan.model import BuildPlan, FilesStep, Layer, WheelStep, input_files

# Of wheels that one task compiles in one sandbox: a minute or two of work.
_WHEELS_BYTES = 300_000_000
# Each has its inputs in the plan beside it, and a plan has at most 1,024 layers.
_MOST_LAYERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Tasks that build the missing layers of many plans."""

    levels: tuple[tuple[BuildPlan, ...], ...]
    """Tasks, by level: a plan whose `image` names the layers that the task builds, beside their inputs."""
    own: tuple[tuple[str, ...], ...]
    """Keys of the layers that the writer of each image builds, sorted: files of that image alone."""


def divide(
    plans: Sequence[BuildPlan],
    missing: Collection[str],
    sizes: Mapping[str, int],
    *,
    wheels_bytes: int = _WHEELS_BYTES,
) -> Division:
    """Divide the layers with the keys `missing` among tasks.

    `sizes` are those of the plans' input files, by sha256; `wheels_bytes` limits the wheels of one task.
    """
    needed: dict[str, tuple[BuildPlan, Layer]] = {}
    inputs: dict[str, set[str]] = {}
    users: dict[str, set[int]] = {}
    for number, plan in enumerate(plans):
        keys = {layer.name: layer.key for layer in plan.layers}
        for layer in plan.layers:
            if layer.key in missing:
                needed.setdefault(layer.key, (plan, layer))
                inputs[layer.key] = {keys[name] for name in layer.inputs}
                users.setdefault(layer.key, set()).add(number)
    made_from = set().union(*inputs.values())
    own = {
        key
        for key, (_, layer) in needed.items()
        if isinstance(layer.step, FilesStep) and len(users[key]) == 1 and key not in made_from
    }
    levels: dict[int, dict[tuple[str, ...], list[str]]] = {}
    depth: dict[str, int] = {}

    def depth_of(key: str) -> int:
        if key not in depth:
            depth[key] = max((1 + depth_of(below) for below in inputs[key] & needed.keys()), default=0)
        return depth[key]

    for key in sorted(needed.keys() - own):
        plan, layer = needed[key]
        levels.setdefault(depth_of(key), {}).setdefault(_group(layer, plan), []).append(key)
    size_of = {
        key: sum(sizes.get(file.sha256, 0) for file in input_files(layer.step))
        for key, (_, layer) in needed.items()
    }
    return Division(
        levels=tuple(
            tuple(
                _task(keys, needed)
                for _, group in sorted(levels[level].items())
                for keys in _chunks(group, needed, size_of, wheels_bytes)
            )
            for level in sorted(levels)
        ),
        own=tuple(tuple(sorted(layer.key for layer in plan.layers if layer.key in own)) for plan in plans),
    )


def _group(layer: Layer, plan: BuildPlan) -> tuple[str, ...]:
    """Return what layers have in common that one task may build."""
    if isinstance(layer.step, WheelStep):
        step = layer.step
        return ("wheel", plan.layer("base").key, step.compiler, step.interpreter.abi, layer.compression)
    if isinstance(layer.step, FilesStep):
        return ("files",)
    return (layer.step.kind, layer.key)


def _chunks(
    keys: Sequence[str],
    needed: Mapping[str, tuple[BuildPlan, Layer]],
    size_of: Mapping[str, int],
    most_bytes: int,
) -> Iterator[list[str]]:
    """Divide layers of a group: the largest first, at most so many bytes, unless one alone is larger.

    Layers of one name are in different tasks, whose plans name each layer.
    """
    chunks: list[list[str]] = []
    names: list[set[str]] = []
    room: list[int] = []
    for key in sorted(keys, key=lambda key: (-size_of[key], key)):
        name = needed[key][1].name
        for number, chunk in enumerate(chunks):
            if size_of[key] <= room[number] and name not in names[number] and len(chunk) < _MOST_LAYERS:
                break
        else:
            number = len(chunks)
            chunks.append([])
            names.append(set())
            room.append(most_bytes)
        chunks[number].append(key)
        names[number].add(name)
        room[number] -= size_of[key]
    return iter(chunks)


def _task(keys: Sequence[str], needed: Mapping[str, tuple[BuildPlan, Layer]]) -> BuildPlan:
    """Return the plan of a task that builds some layers: these, and all that they are made from."""
    layers: dict[str, Layer] = {}

    def add(plan: BuildPlan, layer: Layer) -> None:
        for name in layer.inputs:
            add(plan, plan.layer(name))
        layers[layer.name] = layer

    for key in keys:
        add(*needed[key])
    names = tuple(needed[key][1].name for key in keys)
    return BuildPlan(layers=tuple(layers.values()), image=names, tools=needed[keys[0]][0].tools)
