"""Read a plan back from its canonical text, which a stranger's image may carry. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from envbuild.plan.model import (
    KEY_FORMAT,
    BaseStep,
    BuildPlan,
    FilesStep,
    InputFile,
    Interpreter,
    Layer,
    RootStep,
    SourceStep,
    Step,
    SystemStep,
    TextEntry,
    Tool,
    WheelStep,
    input_files,
    layer_key,
)
from envbuild.plan.planner import ENV_PREFIX, MPI_PREFIX
from envbuild.spec.model import NAME, VARIABLE

_STEPS: dict[str, type[Step]] = {step.__name__.removesuffix("Step").lower(): step for step in get_args(Step)}
_LAYER = r"[a-z0-9][a-z0-9._:+-]*"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._+~%:!-]*"
_SHA256 = r"[0-9a-f]{64}"
_ABI = r"[a-z0-9_]+"
_PYTHON = r"[23]\.\d+"
# No plan has more; each layer's inputs are looked up by name.
_MAX_LAYERS = 1024


def load_plan(text: str) -> BuildPlan:
    """Read what `BuildPlan.to_json` wrote, and check everything in it.

    Raises
    ------
    ValueError
        It is no plan; it holds a value that no planner of ours could have put
        there; or a layer's key is not that of its step, as where another
        version of envbuild made it.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != KEY_FORMAT:
        raise ValueError(f"it is no plan of format {KEY_FORMAT}")
    try:
        plan = _plan(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its structure is not that of a plan") from error
    for problem in _problems(plan):
        raise ValueError(problem)
    if plan.to_json() != text:
        raise ValueError("it holds what this version of envbuild does not know, or is not in canonical form")
    return plan


def older_steps(plan: BuildPlan) -> dict[str, tuple[int, int]]:
    """Return the layers whose steps this version carries out otherwise: name → revision there and here."""
    found = {}
    for layer in plan.layers:
        (here,) = (field.default for field in fields(layer.step) if field.name == "revision")
        if isinstance(here, int) and layer.step.revision != here:
            found[layer.name] = (layer.step.revision, here)
    return found


def _plan(data: Mapping[str, Any]) -> BuildPlan:
    return BuildPlan(
        layers=tuple(map(_layer, data["layers"])),
        image=tuple(data["image"]),
        tools=tuple(Tool(**tool) for tool in data["tools"]),
    )


def _layer(data: Mapping[str, Any]) -> Layer:
    kind = _STEPS[data["kind"]]
    return Layer(
        name=data["name"],
        key=data["key"],
        # From JSON, so that its arrays may be our tuples and nothing else is taken for what it is not.
        step=TypeAdapter(kind).validate_json(json.dumps(data["step"]), strict=True),
        inputs=tuple(data["inputs"]),
        needs=tuple(data["needs"]),
        compression=data["compression"],
    )


def _problems(plan: BuildPlan) -> Iterator[str]:
    if not 0 < len(plan.layers) <= _MAX_LAYERS:
        yield f"it has {len(plan.layers)} layers"
    seen: dict[str, Layer] = {}
    for layer in plan.layers:
        yield from _unmatched("layer", _LAYER, layer.name)
        if layer.name in seen:
            yield f"two layers are called `{layer.name}`"
        for name in (*layer.inputs, *layer.needs):
            if name not in seen:
                yield f"layer {layer.name} is made from `{name}`, which does not come before it"
        yield from (f"layer {layer.name}: {problem}" for problem in _step_problems(layer.step))
        yield from _unmatched("compression", "zstd|gzip", layer.compression)
        if layer_key(layer.step, [seen[name] for name in layer.inputs], layer.compression) != layer.key:
            yield (
                f"layer {layer.name} has not the key of its step: it was changed or damaged, or another"
                " version of envbuild made it"
            )
        seen[layer.name] = layer
    unknown = sorted(set(plan.image) - seen.keys())
    if unknown or not plan.image or len(set(plan.image)) < len(plan.image):
        yield f"its image holds layers that it does not list, none, or one twice: {', '.join(unknown)}"


def _step_problems(step: Step) -> Iterator[str]:
    for file in (*input_files(step), *_interpreter_files(step)):
        yield from _unmatched("file", _FILE, file.name)
        yield from _unmatched("sha256", _SHA256, file.sha256)
    if isinstance(step, BaseStep | SystemStep):
        yield from _unmatched("suite", NAME, step.suite)
        yield from _unmatched("architecture", NAME, step.architecture)
    if isinstance(step, RootStep):
        yield from _unmatched("format", "tar|oci|squashfs", step.format)
        yield from _unmatched("python", _PYTHON, step.python)
    if isinstance(step, BaseStep | SystemStep | RootStep):
        yield from _odd_paths(step.texts, directories=True)
    if isinstance(step, WheelStep | SourceStep):
        if step.prefix not in (ENV_PREFIX, MPI_PREFIX):
            yield f"`{step.prefix}` is not a prefix of a layer"
        yield from _unmatched("abi", _ABI, step.interpreter.abi)
    if isinstance(step, SourceStep):
        yield from _unmatched("environment", VARIABLE, *step.environment)
        yield from _unmatched("patch", _FILE, *(patch.path for patch in step.patches))
        yield from _odd_contents(step.patches)
    if isinstance(step, FilesStep):
        yield from _odd_paths([*(entry.path for entry in step.files), *step.links])
        yield from _odd_contents(step.files)


def _interpreter_files(step: Step) -> tuple[InputFile, ...]:
    found: Interpreter | None = getattr(step, "interpreter", None)
    return found.debs if found is not None else ()


def _odd_paths(paths: Iterable[str], *, directories: bool = False) -> Iterator[str]:
    for path in paths:
        words = (path.removesuffix("/") if directories else path).split("/")
        if words[0] or len(words) < 2 or {"", ".", ".."} & set(words[1:]) or not path.isprintable():
            yield f"`{path}` is no path of an image"


def _odd_contents(entries: Iterable[TextEntry]) -> Iterator[str]:
    for entry in entries:
        try:
            base64.b64decode(entry.content, validate=True)
        except (binascii.Error, ValueError):
            yield f"the content of `{entry.path}` is not base64"


def _unmatched(what: str, pattern: str, *values: str) -> Iterator[str]:
    for value in values:
        if not re.fullmatch(pattern, value):
            yield f"{what}: {value!r} is none"
