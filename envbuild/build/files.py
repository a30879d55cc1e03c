"""Layers of files that we write ourselves: the spec's files, and the image's own story."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from envbuild.plan.model import TextEntry


def write_files(entries: Sequence[TextEntry], root: Path) -> None:
    """Write files into an empty root.

    Parameters
    ----------
    entries : sequence of TextEntry
        Absolute paths in the image, already checked to hold no ``..``.
    root : Path
        An empty directory of ours; directories below it get mode 0755.
    """
    for entry in entries:
        path = root / entry.path.lstrip("/")
        for parent in reversed(path.parents):
            if parent.is_relative_to(root) and parent != root and not parent.exists():
                parent.mkdir()
                parent.chmod(0o755)
        path.write_bytes(base64.b64decode(entry.content))
        path.chmod(0o755 if entry.executable else 0o644)
