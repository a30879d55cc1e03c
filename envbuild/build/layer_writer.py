"""Writes the squashfs of a layer that is never a tree on disk."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path

from envbuild.plan.model import Compression
from envbuild.squashfs.packing import GZIP, ZSTD, Packing
from envbuild.squashfs.writer import SquashfsWriter, StoredFile
from envbuild.store.tree import Tree

PACKINGS: dict[Compression, Packing] = {"zstd": ZSTD, "gzip": GZIP}


def tree_of(files: Mapping[str, StoredFile]) -> Tree:
    """Return the tree that files make, given by their paths."""
    tree: dict[str, str] = {}
    for path, file in files.items():
        _note(tree, path, _entry(file))
    return dict(sorted(tree.items()))


def _entry(file: StoredFile) -> str:
    return f"f {file.mode:04o} {file.digest}"


def _note(tree: dict[str, str], path: str, entry: str) -> None:
    """Add a path to a tree, and the directories that it lies in."""
    tree[path] = entry
    parent = path.rpartition("/")[0]
    while parent and parent not in tree:
        tree[parent] = "d 0755"
        parent = parent.rpartition("/")[0]


class LayerWriter(SquashfsWriter):
    """Writes a layer, and notes its paths."""

    def __init__(self, path: Path, packing: Packing, threads: Executor) -> None:
        super().__init__(path, packing, threads)
        self._tree: dict[str, str] = {}

    @property
    def tree(self) -> Tree:
        """The paths of the layer."""
        return dict(sorted(self._tree.items()))

    def has(self, path: str) -> bool:
        """Return whether something has a path."""
        return path in self._tree

    def can_hold(self, directory: str) -> bool:
        """Return whether a path is a directory, or can become one."""
        return self._tree.get(directory, "d").startswith("d")

    def add_file(self, path: str, file: StoredFile) -> None:
        """Add a file that this writer stored."""
        super().add_file(path, file)
        _note(self._tree, path, _entry(file))

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        super().add_link(path, target)
        _note(self._tree, path, f"l {target}")

    def add_directory(self, path: str, mode: int) -> None:
        """Add a directory."""
        super().add_directory(path, mode)
        _note(self._tree, path, f"d {mode:04o}")
