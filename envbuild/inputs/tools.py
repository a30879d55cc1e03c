"""Finds the tools of this machine that make layers, as pins of a lock."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from envbuild.errors import EnvbuildError
from envbuild.lock.model import ToolPin
from envbuild.spec.base import BaseImage
from envbuild.system import tools


def tool_names(base: BaseImage) -> tuple[str, ...]:
    """Return the tools that make the layers of an image; a finished root needs no mmdebstrap."""
    return tuple(name for name in tools.NAMES if name != "mmdebstrap" or base.root is None)


def known_tool_pins(base: BaseImage) -> tuple[ToolPin, ...]:
    """Return the tools of this machine that can be identified."""
    pins: list[ToolPin] = []
    for name in tool_names(base):
        with contextlib.suppress(EnvbuildError):
            pins += tool_pins([name])
    return tuple(sorted(pins))


def tool_pins(names: Sequence[str]) -> tuple[ToolPin, ...]:
    """Return pins of this machine's tools."""
    identities = tools.identify(names)
    return tuple(
        sorted(ToolPin(name=tool.name, version=tool.version, digest=tool.digest) for tool in identities)
    )
