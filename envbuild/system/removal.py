"""Removes trees, whatever a step or a job left in them."""

from __future__ import annotations

import shutil
from pathlib import Path

from envbuild.system import host, process


def remove(path: Path) -> None:
    """Remove a tree, read-only directories in it included; a missing one is ignored."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        # Read-only directories, or deeper ones than paths and recursion reach.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            process.run([*command, "--", path], env=host.environment())
        if path.exists():
            raise
