"""Whether others can change a file, or put another in its place.

An access control list that lets others write shows in the bits of the group (acl(5)).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path

from envbuild.errors import MachineError, RequestError
from envbuild.quoting import shell_path
from envbuild.system import host
from envbuild.system.links import follow, real_path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_PASS = stat.S_IXGRP | stat.S_IXOTH


class PrivateTree:
    """A tree of files that only trusted users can change.

    `root` is its top, an open directory (see `descriptors`) that its opener has checked. `trusted` are user
    ids besides this user, root, and in a namespace the owner of ``/``.
    """

    def __init__(self, root: Path, trusted: Collection[int] = ()) -> None:
        self._root = root
        self._trusted = {*trusted, *_always_trusted()}
        self._private: set[Path] = set()

    def is_private(self, name: str | Path) -> bool:
        """Return whether a path below the top is a file that others can neither write to nor replace."""
        status = (self._root / name).lstat()
        return (
            stat.S_ISREG(status.st_mode)
            and self.only_trusted_can_write(status)
            and self._ancestors_are_private(Path(name).parent)
        )

    def only_trusted_can_write(self, status: os.stat_result) -> bool:
        """Return whether trusted users alone can write to a file or directory."""
        return status.st_uid in self._trusted and not status.st_mode & OTHERS_WRITE

    def _ancestors_are_private(self, directory: Path) -> bool:
        for name in (directory, *directory.parents[:-1]):
            if name not in self._private:
                status = (self._root / name).lstat()
                if not (stat.S_ISDIR(status.st_mode) and self.only_trusted_can_write(status)):
                    return False
                self._private.add(name)
        return True


def parents_others_can_write(path: Path, trusted: Collection[int] = ()) -> tuple[Path, ...]:
    """Return the directories above a path in which others can rename an entry of the path, from ``/`` on.

    Below a directory that only its owner can pass, such as many homes, no other user can rename anything.
    `trusted` as in `PrivateTree`.
    """
    users = {*trusted, *_always_trusted()}
    opened = []
    for parent in reversed(real_path(path).parents):
        try:
            status = parent.stat()
        except FileNotFoundError:
            break
        is_open = bool(status.st_mode & OTHERS_WRITE) and not status.st_mode & stat.S_ISVTX
        if is_open or status.st_uid not in users:
            opened.append(parent)
        elif not status.st_mode & _OTHERS_PASS:
            break
    return tuple(opened)


def check_settings(path: Path) -> None:
    """Refuse a file of settings that everybody can write to or replace; RequestError.

    It names programs that this user runs, and whose work is trusted. A group may write: many users have one
    of their own. If it cannot be examined, its reader reports that.
    """
    for entry in _on_the_way(path):
        try:
            status = entry.lstat()
        except OSError:
            return
        is_directory = stat.S_ISDIR(status.st_mode)
        is_open = bool(status.st_mode & stat.S_IWOTH) and not (is_directory and status.st_mode & stat.S_ISVTX)
        if is_open and (is_directory or stat.S_ISREG(status.st_mode)):
            close = f"`chmod o-w {shell_path(entry)}`"
            hint = f"if its content is what you expect, {close}"
            if entry != path and status.st_uid != os.geteuid():
                hint = f"ask its owner, {host.user(status.st_uid)}, for {close}, or keep `{path}` elsewhere"
            raise RequestError(
                f"everybody can write to `{entry}`, and so decides what envbuild runs", hint=hint
            )


def _on_the_way(path: Path) -> list[Path]:
    """Return each directory and file that opening a path passes, from ``/`` on, of links their targets.

    A link can be replaced where it lies, and its file where that lies.
    """
    passed = [Path("/")]

    def look(step: str) -> str | None:
        try:
            return str(Path(step).readlink())
        except OSError:  # not a link, or it cannot be examined
            passed.append(Path(step))
            return ""

    follow(str(path.absolute()), look)
    return passed


def private_temporary_directory() -> Path:
    """Return a directory for temporary files in which no other user can rename ours."""
    for path in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/tmp")):  # noqa: S108  # checked
        if path.is_dir() and not parents_others_can_write(path / "below"):
            return real_path(path)
    raise MachineError(
        "others can write to all directories for temporary files",
        hint="name one of yours with TMPDIR, or a store elsewhere with --store DIR",
    )


def _always_trusted() -> tuple[int, int, int]:
    return os.geteuid(), 0, Path("/").stat().st_uid
