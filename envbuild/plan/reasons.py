"""Explains why a layer is built: what changed since the last plan. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envbuild.errors import some
from envbuild.plan.model import BuildPlan, Layer

# Fields of steps that hold pins → their names in a sentence.
_PINNED = {
    "wheel": "wheel",
    "debs": "packages",
    "archives": "root",
    "build_wheels": "build tools",
    "tools": "tools",
}

# Files of every image that come with envbuild, and the lock; see `envbuild.image.metadata`.
_OWN_FILES = "/.envbuild/lib/"
_LOCK = "/.envbuild/lock.yaml"
_OWN_CHANGED = "envbuild's own files changed"

# Name for people → version, and the identity of the item.
_Named = Mapping[str, tuple[str, str]]


def reasons(plan: BuildPlan, previous: str | None) -> dict[str, str]:
    """Return, by layer, how it differs from the same layer of an earlier plan; empty if it does not.

    `previous` is the earlier plan's `BuildPlan.to_json`; None if there is none.
    """
    before = _layers(previous)
    changed: dict[str, str] = {}
    for layer in plan.layers:
        earlier = before.get(layer.name)
        if earlier is None:
            changed[layer.name] = "new layer" if before else "first build"
        elif earlier.get("key") == layer.key:
            changed[layer.name] = ""
        else:
            inputs = [name for name in layer.inputs if changed.get(name)]
            try:
                own = _differences(layer, earlier)
            except (AttributeError, KeyError, TypeError, ValueError):
                own = []  # a plan of an older format
            changed[layer.name] = (
                "; ".join(own) or ", ".join(f"{name} changed" for name in inputs) or "changed"
            )
    return changed


def _layers(previous: str | None) -> dict[str, dict[str, Any]]:
    if previous is None:
        return {}
    try:
        return {layer["name"]: layer for layer in json.loads(previous)["layers"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}  # an older format explains nothing; the keys still decide


def _differences(layer: Layer, earlier: Mapping[str, Any]) -> list[str]:
    now: dict[str, Any] = layer.step.model_dump(mode="json")
    then: dict[str, Any] = earlier.get("step", {})
    differences: list[str] = []
    for field in sorted(now.keys() | then.keys()):
        if now.get(field) == then.get(field):
            continue
        if layer.name == "metadata" and field == "files":
            differences += _metadata(then.get(field), now.get(field))
        else:
            differences += _field(field, then.get(field), now.get(field))
    return differences


def _field(field: str, then: Any, now: Any) -> list[str]:  # noqa: ANN401  # whatever JSON holds
    if field in _PINNED:
        return _pins(_PINNED[field], _by_name(then), _by_name(now))
    if field in ("files", "patches"):
        name = "path" if field == "files" else "name"
        return _pins(field, _by_content(then, name), _by_content(now, name))
    if field == "texts":
        return [_OWN_CHANGED]
    if field == "interpreter":
        return ["version of Python changed"]
    if field == "revision":
        return [f"envbuild makes this kind of layer anew (revision {then} → {now})"]
    return [f"{field} changed"]


def _metadata(then: Any, now: Any) -> list[str]:  # noqa: ANN401  # whatever JSON holds
    """Say where the differences of an image's metadata come from; users did not write these files."""
    before, after = _by_content(then, "path"), _by_content(now, "path")
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    sentences = ["lock changed"] if _LOCK in changed else []
    if any(path.startswith(_OWN_FILES) for path in changed):
        sentences.append(_OWN_CHANGED)
    return sentences or ["description of the image changed"]


def _pins(kind: str, then: _Named, now: _Named) -> list[str]:
    """``python gained tabulate 0.9.0``, ``python lost …``, ``tools changed uv 0.9 → 0.10``."""
    gained = [f"{name} {now[name][0]}".strip() for name in sorted(now.keys() - then.keys())]
    lost = sorted(then.keys() - now.keys())
    other = [
        f"{name} {then[name][0]} → {now[name][0]}" if then[name][0] != now[name][0] else name
        for name in sorted(then.keys() & now.keys())
        if then[name] != now[name]
    ]
    sentences = []
    for verb, names in (("gained", gained), ("lost", lost), ("changed", other)):
        if names:
            sentences.append(f"{kind} {verb} {some(names)}")
    return sentences


def _by_name(value: Any) -> _Named:  # noqa: ANN401  # whatever JSON holds
    by_name = {}
    for item in (value,) if isinstance(value, dict) else value or ():
        if "version" in item:
            by_name[item["name"]] = (f"{item['version']} ({item['digest'][7:15]})", item["digest"])
        else:
            name, version = _name_and_version(item["name"])
            by_name[name] = (version, item["sha256"])
    return by_name


def _by_content(value: Any, name: str) -> _Named:  # noqa: ANN401  # whatever JSON holds
    return {item[name]: ("", json.dumps(item, sort_keys=True)) for item in value or ()}


def _name_and_version(file_name: str) -> tuple[str, str]:
    if file_name.endswith(".deb"):
        parts = file_name.removesuffix(".deb").split("_")
        return parts[0], parts[1] if len(parts) > 1 else ""
    try:
        name, version, _, _ = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return file_name, ""
    return str(name), str(version)
