"""Roots made by others: unpacked, compared with their definition, and prepared for an image."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild.build import debian
from envbuild.build.archives import unpack_squashfs, unpack_tar
from envbuild.build.unpack import RootLimits, Writer, refused
from envbuild.errors import BuildError
from envbuild.system.links import follow
from envbuild.system.removal import remove
from envbuild.system.tarmembers import UnsafeArchiveError

# Files of container runtimes, replaced by those of the image.
_RUNTIME_FILES = (
    ".singularity.d",
    ".envbuild",
    ".dockerenv",
    "environment",
    "singularity",
    ".exec",
    ".run",
    ".shell",
)


def make_imported_root(
    archives: Sequence[Path],
    *,
    kind: str,
    python: str,
    texts: Mapping[str, str],
    tree: Path,
    limits: RootLimits | None = None,
) -> None:
    """Unpack a finished root into `tree`, which must not exist.

    `archives` are verified files from bottom to top, all of one `kind`: ``tar``, ``oci`` or ``squashfs``.
    `python` is the version that /usr/bin/python3 must have; `texts` are as in `debian.make_root`. BuildError:
    an archive is damaged or unsafe, or the root cannot be a base.
    """
    tree.mkdir(mode=0o755)
    try:
        _unpack(archives, kind, tree, limits or RootLimits())
        _make_fit(tree, python, texts)
    except BuildError:
        remove(tree)  # untrusted, and the user cannot repeat a step on it
        raise


def _unpack(archives: Sequence[Path], kind: str, tree: Path, limits: RootLimits) -> None:
    writer = Writer(tree, limits)
    try:
        for archive in archives:
            writer.next_layer()
            try:
                if kind == "squashfs":
                    unpack_squashfs(archive, writer, limits)
                else:
                    unpack_tar(archive, writer, limits, is_layer=kind == "oci")
            except UnsafeArchiveError as error:
                raise refused(archive.name, error) from None
    finally:
        writer.close()


def _make_fit(tree: Path, python: str, texts: Mapping[str, str]) -> None:
    for name in _RUNTIME_FILES:
        remove(tree / name)
    _check_directories(tree, texts)
    for text in texts:
        remove(tree / text.strip("/"))
    _check_python(tree, python)
    debian.normalize_root(tree, texts)


def _check_directories(tree: Path, texts: Mapping[str, str]) -> None:
    """Reject a root in which a path that we write or empty is a link: it could lead out of the root."""
    managed = {*debian.MANAGED_PATHS, *(os.path.dirname(path).strip("/") for path in texts)}  # noqa: PTH120
    for path in sorted(managed):
        place = tree
        for part in path.split("/") if path else ():
            place = place / part
            try:
                mode = place.lstat().st_mode
            except FileNotFoundError:
                break
            if not stat.S_ISDIR(mode):
                raise BuildError(
                    f"`/{place.relative_to(tree)}` is no directory in this root, and an image needs one",
                    hint="links such as those of image-based systems have to be real directories here",
                )


def _check_python(tree: Path, version: str) -> None:
    """Reject a root whose Python has another version than its definition: layers are built for that one."""

    def look(path: str) -> str | None:
        place = tree / path.lstrip("/")
        if place.is_symlink():
            return str(place.readlink())
        return "" if place.exists() else None

    name = f"python{version}" if version.startswith("2.") else "python3"
    path, missing = follow(f"/usr/bin/{name}", look)
    if missing or not (tree / path.lstrip("/")).is_file():
        raise BuildError(
            f"there is no /usr/bin/{name} in this root",
            hint="a base holds its Python: install it there before the root is packed",
        )
    python = path.rpartition("/")[2]
    if python != f"python{version}":
        raise BuildError(
            f"/usr/bin/{name} of this root is `{python}`, and its definition says Python {version}",
            hint="name the root's own version under `python`",
        )
