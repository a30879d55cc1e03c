"""Checks that a directory is a store, and that only its user can write to it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from envbuild.errors import MachineError, RequestError
from envbuild.formats import FormatError, hint_for
from envbuild.quoting import shell_path
from envbuild.system import host
from envbuild.system.links import real_path
from envbuild.system.privacy import OTHERS_WRITE

STORE_FORMAT = 1
MARKER = f"envbuild-store-{STORE_FORMAT}"
_MARKERS = re.compile(r"envbuild-store-([0-9]{1,9})")
_ANOTHER = "name another store with --store DIR or ENVBUILD_STORE"
_AREAS = frozenset(
    ("blobs", "files", "layers", "logs", "parts", "plans", "resolve", "roots", "scans", "stage", "verdicts")
)


def check_store(descriptor: int, path: Path) -> bool:
    """Return whether an open directory is a store; False for an empty one, which can become a store.

    RequestError: it belongs to another user, others can write to it, it has another format, or it is not a
    store. An access control list that lets others write shows in the group's bits (acl(5)).
    """
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        problem = f"the store `{path}` belongs to {host.user(status.st_uid)}, and a store has one owner"
        raise RequestError(problem, hint=_ANOTHER)
    if status.st_mode & OTHERS_WRITE:
        who = "everybody" if status.st_mode & stat.S_IWOTH else "its group"
        raise RequestError(
            f"{who} can write to the store `{path}`, and so into images",
            hint=f"if no other user did, `chmod -R go-w {shell_path(path)}`; else delete it and build again",
        )
    with os.scandir(descriptor) as entries:
        # A file system's own directory may lie in an empty directory.
        kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries} | {"lost+found": True}
    del kinds["lost+found"]
    if kinds and MARKER not in kinds:
        if (other_format := format_of(kinds)) is not None:
            raise RequestError(
                f"the store `{path}` cannot be used: {other_format}",
                hint=f"{hint_for(other_format, 'use the version of envbuild that made it')}; or {_ANOTHER}",
            )
        if not _AREAS & kinds.keys():
            raise RequestError(f"`{path}` is not a store; it contains other files", hint=_ANOTHER)
        raise RequestError(
            f"an earlier version of envbuild made the store `{path}`",
            hint=f"delete it with `rm -rf {shell_path(path)}`, and build the images again",
        )
    for name in sorted(_AREAS & kinds.keys()):
        if not kinds[name]:
            problem = f"`{name}` in the store `{path}` is not a directory"
            raise RequestError(problem, hint="remove it: what it held is built and fetched again")
    return bool(kinds)


def format_of(names: Iterable[str]) -> FormatError | None:
    """Return the error for a store of another format, by the names in it; None without a mark of one."""
    numbers = [int(match[1]) for match in map(_MARKERS.fullmatch, names) if match]
    return FormatError(max(numbers), STORE_FORMAT) if numbers and STORE_FORMAT not in numbers else None


def mark_store(descriptor: int) -> None:
    """Make an open, empty directory a store."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    # Another process may create it at the same time.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(MARKER, flags, 0o444, dir_fd=descriptor))


def not_opened(path: Path, error: OSError, hint: str = _ANOTHER) -> RequestError | MachineError:
    """Return the error for a store directory that cannot be opened or created."""
    if path.is_symlink():
        return RequestError(f"the store `{path}` is a link", hint=f"name its directory: `{real_path(path)}`")
    if isinstance(error, NotADirectoryError | FileExistsError):
        return RequestError(f"`{error.filename}` is not a directory, so it is not a store", hint=hint)
    return MachineError(f"the store `{path}` cannot be opened: {error.strerror}", hint=hint)
