"""Roots that somebody else has made: unpacked, held to what is said of them, and made fit for an image."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild.build import debian
from envbuild.build.archives import unpack_squashfs, unpack_tar
from envbuild.build.unpack import RootLimits, UnsafeArchiveError, Writer, refused
from envbuild.errors import BuildError
from envbuild.system.removal import remove

# What runtimes leave in a root; ours comes in its place.
_STORIES = (
    ".singularity.d",
    ".envbuild",
    ".dockerenv",
    "environment",
    "singularity",
    ".exec",
    ".run",
    ".shell",
)
_MAX_LINKS = 40


def make_imported_root(
    archives: Sequence[Path],
    *,
    kind: str,
    python: str,
    texts: Mapping[str, str],
    tree: Path,
    limits: RootLimits | None = None,
) -> None:
    """Unpack a finished root.

    Parameters
    ----------
    archives : sequence of Path
        Verified files, from bottom to top.
    kind : str
        ``tar``, ``oci`` or ``squashfs``.
    python : str
        Version that /usr/bin/python3 must have.
    texts : mapping
        Absolute path → content of files to add, as `debian.make_root` has them.
    tree : Path
        Receives the root; must not exist.

    Raises
    ------
    BuildError
        An archive is damaged or hostile, or the root cannot be a base.
    """
    bounds = limits or RootLimits()
    tree.mkdir(mode=0o755)
    try:
        _unpack(archives, kind, tree, bounds)
        _make_fit(tree, python, texts)
    except BuildError:
        remove(tree)  # a stranger's: nothing is to be repeated on it
        raise


def _unpack(archives: Sequence[Path], kind: str, tree: Path, bounds: RootLimits) -> None:
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".unpack-") as name:
        writer = Writer(tree, bounds)
        try:
            for archive in archives:
                writer.next_layer()
                try:
                    if kind == "squashfs":
                        unpack_squashfs(archive, writer, bounds)
                    else:
                        unpack_tar(archive, writer, Path(name), bounds, is_layer=kind == "oci")
                except UnsafeArchiveError as error:
                    raise refused(archive.name, error) from None
        finally:
            writer.close()


def _make_fit(tree: Path, python: str, texts: Mapping[str, str]) -> None:
    for story in _STORIES:
        remove(tree / story)
    _check_directories(tree, texts)
    for text in texts:
        remove(tree / text.strip("/"))
    _check_python(tree, python)
    debian.normalize_root(tree, texts)


def _check_directories(tree: Path, texts: Mapping[str, str]) -> None:
    """Refuse a root in which what we write or empty is a link: we would follow it out of the root."""
    ours = {*debian.MANAGED_PATHS, *(os.path.dirname(path).strip("/") for path in texts)}  # noqa: PTH120
    for path in sorted(ours):
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
    """Refuse a root whose Python is another than its definition says: layers are made for that one."""
    place, links = "usr/bin/python3" if not version.startswith("2.") else f"usr/bin/python{version}", 0
    while (path := _within(tree, place)) is not None and path.is_symlink():
        links += 1
        if links > _MAX_LINKS:
            break
        target = str(path.readlink())
        parent = place.rpartition("/")[0]
        place = os.path.normpath(target if target.startswith("/") else f"/{parent}/{target}").strip("/")
    if path is None or not path.is_file() or path.is_symlink():
        raise BuildError(
            "there is no /usr/bin/python3 in this root",
            hint="a base holds its Python: install it there before the root is packed",
        )
    if path.name != f"python{version}":
        raise BuildError(
            f"/usr/bin/python3 of this root is `{path.name}`, and its definition says Python {version}",
            hint="name the root's own version under `python`",
        )


def _within(tree: Path, place: str) -> Path | None:
    """Return a path of the root, whose directories may be links (``/bin``); None where it is not there."""
    done, links = "", 0
    parts = place.split("/")
    while len(parts) > 1:
        here = f"{done}/{parts.pop(0)}".strip("/")
        path = tree / here
        if not path.is_symlink():
            if not path.is_dir():
                return None
            done = here
            continue
        links += 1
        target = str(path.readlink())
        joined = os.path.normpath(target if target.startswith("/") else f"/{done}/{target}").strip("/")
        if links > _MAX_LINKS:
            return None
        parts, done = [*(joined.split("/") if joined else []), *parts], ""
    path = tree / done / parts[0]
    return path if path.is_symlink() or path.exists() else None
