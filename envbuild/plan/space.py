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
    used: dict[str, int] = {}
    made: dict[str, int] = {}
    roots = []
    for layer in layers:
        own = {file.sha256: sizes[file.sha256] for file in input_files(layer.step)}
        used |= own
        made |= made_bytes(layer, sizes)
        if isinstance(layer.step, BaseStep | SystemStep):
            roots.append(sum(own.values()))
    return NeededSpace(
        inputs_bytes=sum(used.values()),
        layers_bytes=sum(made.values()),
        temporary_bytes=_ROOT * sum(sorted(roots, reverse=True)[:at_once]),
    )


def made_bytes(layer: Layer, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return about how many bytes building a layer makes in the store of each of its files, by SHA-256."""
    factor = _WHEEL if isinstance(layer.step, WheelStep) else _UNPACKED
    return {file.sha256: sizes[file.sha256] * factor for file in input_files(layer.step)}
