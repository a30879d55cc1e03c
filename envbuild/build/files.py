"""Layers of files that envbuild itself writes: the spec's files, and the image's own metadata."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from envbuild.errors import BuildError
from envbuild.plan.model import InlineFile
from envbuild.store.tree import Tree


def write_files(entries: Sequence[InlineFile], links: Mapping[str, str], root: Path) -> None:
    """Write files and symbolic links into an empty root; new directories get mode 0755.

    Paths are absolute in the image, and already checked for ``..``. Targets of links are never followed here.
    """
    for entry in entries:
        path = _place(entry.path, root)
        path.write_bytes(base64.b64decode(entry.content))
        path.chmod(0o755 if entry.executable else 0o644)
    for name, target in links.items():
        _place(name, root).symlink_to(target)


def tree_of(entries: Sequence[InlineFile]) -> Tree:
    """Return the tree that `write_files` writes."""
    tree = {}
    for entry in entries:
        digest = hashlib.sha256(base64.b64decode(entry.content)).hexdigest()
        tree[entry.path.lstrip("/")] = f"f {'0755' if entry.executable else '0644'} {digest}"
        for parent in PurePosixPath(entry.path.lstrip("/")).parents[:-1]:
            tree[str(parent)] = "d 0755"
    return dict(sorted(tree.items()))


def _place(name: str, root: Path) -> Path:
    """Return the path of a file of the image below `root`; make its parents."""
    path = root / name.lstrip("/")
    for parent in reversed(path.parents):
        if not parent.is_relative_to(root) or parent == root:
            continue
        if parent.is_symlink():
            raise BuildError(
                f"`{name}` lies below a symbolic link of the same layer",
                hint="give it another `target`, one that no link of the same layer leads to",
            )
        if not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)
    return path
