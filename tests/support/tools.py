"""Locked tools: those of this machine."""

from __future__ import annotations

from envbuild.lock.model import ToolPin
from envbuild.system import tools


def real_tools() -> tuple[ToolPin, ...]:
    """Return the pin of what packs layers of files."""
    identified = tools.identify(["zstandard"])
    return tuple(ToolPin(name=tool.name, version=tool.version, digest=tool.digest) for tool in identified)
