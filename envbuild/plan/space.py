"""Estimates of the space that building layers needs, from the sizes of their files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envbuild.plan.model import BaseStep, Layer, RootStep, SystemStep, WheelStep, input_files

# What files of packages become, as a multiple of their size: the layer of a wheel, sources and bytecode of
# its modules; Debian packages unpacked and packed again; a root, and its tar.
_WHEEL = 3
_UNPACKED = 5
_ROOT = 9
# Files and directories of an unpacked root: one for so many bytes of its packages (Debian 12: 4,700).
_BYTES_PER_INODE = 4000
# Of a layer: its squashfs and its record, each in a directory, and its log.
_INODES_OF_LAYER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededSpace:
    """Sizes of the inputs of layers, and estimates of what is made from them."""

    inputs_bytes: int
    layers_bytes: int
    """The layers, with what their steps keep in the store meanwhile."""
    temporary_bytes: int
    """Unpacked roots and Debian packages of layers that are built at once; 0 if no layer has some."""
    layers_inodes: int
    """Files and directories of the layers in the store, with the roots that are unpacked there at once."""
    temporary_inodes: int
    """Files and directories of `temporary_bytes`."""


def needed_space(layers: Iterable[Layer], sizes: Mapping[str, int], *, at_once: int = 2) -> NeededSpace:
    """Return the space that building layers needs, so many `at_once`.

    `sizes` are those of their files by SHA-256, in bytes.
    """
    used: dict[str, int] = {}
    made: dict[str, int] = {}
    installed, unpacked, count = [], [], 0
    for layer in layers:
        own = {file.sha256: sizes[file.sha256] for file in input_files(layer.step)}
        used |= own
        made |= made_bytes(layer, sizes)
        count += 1
        if isinstance(layer.step, BaseStep | SystemStep):
            installed.append(sum(own.values()))
        if isinstance(layer.step, BaseStep | SystemStep | RootStep):
            unpacked.append(sum(own.values()))
    installed_bytes, unpacked_bytes = (
        sum(sorted(roots, reverse=True)[:at_once]) for roots in (installed, unpacked)
    )
    return NeededSpace(
        inputs_bytes=sum(used.values()),
        layers_bytes=sum(made.values()),
        temporary_bytes=_ROOT * installed_bytes,
        layers_inodes=_INODES_OF_LAYER * count + unpacked_bytes // _BYTES_PER_INODE,
        temporary_inodes=installed_bytes // _BYTES_PER_INODE,
    )


def made_bytes(layer: Layer, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return about how many bytes building a layer makes in the store of each of its files, by SHA-256."""
    factor = _WHEEL if isinstance(layer.step, WheelStep) else _UNPACKED
    return {file.sha256: sizes[file.sha256] * factor for file in input_files(layer.step)}
