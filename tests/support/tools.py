"""Locked tools: the programs of this machine."""

from __future__ import annotations

from pathlib import Path

from envbuild.lock.model import ToolPin
from envbuild.system import tools


def real_tools(directory: Path) -> tuple[ToolPin, ...]:
    """Return the pin of this machine's mksquashfs; its digest is kept below a directory."""
    identified = tools.identify(directory / "cache", ["mksquashfs"])
    return tuple(ToolPin(name=tool.name, version=tool.version, digest=tool.digest) for tool in identified)
