"""Estimates of the space that building layers needs, from the sizes of their files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envbuild.plan.model import BaseStep, Layer, SystemStep, WheelStep, input_files

# What files of packages become, as a multiple of their size: the layer of a wheel, sources and bytecode of
# its modules; Debian packages unpacked and packed again; a root, and its tar.
_WHEEL = 3
_UNPACKED = 5
_ROOT = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededSpace:
    """Sizes of the inputs of layers, and estimates of what is made from them."""

    inputs_bytes: int
    layers_bytes: int
    """The layers, with what their steps keep in the store meanwhile."""
    temporary_bytes: int
    """Unpacked roots and Debian packages of layers that are built at once; 0 if no layer has some."""


def needed_space(layers: Iterable[Layer], sizes: Mapping[str, int], *, at_once: int = 2) -> NeededSpace:
    """Return the space that building layers needs, so many `at_once`.

    `sizes` are those of their files by SHA-256, in bytes.
    """
    layers = list(layers)
    inputs = {layer.key: {file.sha256 for file in input_files(layer.step)} for layer in layers}
    used = {digest: sizes[digest] for digests in inputs.values() for digest in digests}
    wheels = {layer.step.wheel.sha256 for layer in layers if isinstance(layer.step, WheelStep)}
    roots = (inputs[layer.key] for layer in layers if isinstance(layer.step, BaseStep | SystemStep))
    largest = sorted((sum(used[digest] for digest in digests) for digests in roots), reverse=True)
    return NeededSpace(
        inputs_bytes=sum(used.values()),
        layers_bytes=sum(size * (_WHEEL if digest in wheels else _UNPACKED) for digest, size in used.items()),
        temporary_bytes=_ROOT * sum(largest[:at_once]),
    )
