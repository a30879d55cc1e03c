"""The paths of a layer, one line each, so that layers can be compared without unpacking them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.system.files import sha256

WHITEOUT = "whiteout"

# Limits on nested directories and on a path's length: below other directories it must stay under 4096 bytes.
DEEPEST = 128
_LONGEST_BYTES = 3072


Tree = Mapping[str, str]
"""The paths of a layer, sorted, without a leading slash → ``d 0755``, ``f 0644 <sha256>``, ``l <target>`` or
``whiteout``, which hides a path of lower layers."""


def scan(root: Path) -> Tree:
    """Read a directory tree.

    BuildError: it holds a device, a socket or a named pipe, or a path that is too long or too deep.
    """
    return {name: _entry(root, name, status) for name, status in _names(root)}


def _entry(root: Path, name: str, status: os.stat_result) -> str:
    path = os.path.join(root, name)  # noqa: PTH118  # faster than a Path, for tens of thousands
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return f"d {mode:04o}"
    if stat.S_ISLNK(status.st_mode):
        return f"l {os.readlink(path)}"  # noqa: PTH115  # a Path would normalize it
    if stat.S_ISREG(status.st_mode):
        return f"f {mode:04o} {sha256(path)}"
    raise BuildError(
        f"`/{name}` is neither a file, a directory nor a symbolic link",
        hint="layers hold none: take it out of the package or base that brings it",
    )


def walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every path below a directory with its status, sorted; links are not followed."""
    for name, status in _names(root):
        yield root / name, status


def _names(root: Path, above: str = "") -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(os.path.join(root, above)) as entries:  # noqa: PTH118  # as in `_entry`
        children = sorted(entries, key=lambda child: child.name)
    for child in children:
        name, status = above + child.name, child.stat(follow_symlinks=False)
        yield name, status
        if stat.S_ISDIR(status.st_mode):
            check_directory(name)
            yield from _names(root, f"{name}/")


def check_directory(name: str) -> None:
    """Check the path of a directory, without a leading slash; BuildError if it is too long or too deep."""
    if len(os.fsencode(name)) > _LONGEST_BYTES or name.count("/") >= DEEPEST:
        raise BuildError(
            f"`/{name[:80]}…` is a path that is too long or too deep",
            hint="take it out of the package or base that brings it",
        )


def collisions(trees: Mapping[str, Tree]) -> list[tuple[str, str, str]]:
    """Return paths that two layers hold with different content or mode: (path, lower layer, upper layer)."""
    owners: dict[str, list[str]] = {}
    different = []
    for name, tree in trees.items():
        for path, entry in tree.items():
            earlier = owners.setdefault(path, [])
            different += [(path, other, name) for other in earlier if trees[other][path] != entry]
            earlier.append(name)
    return different
