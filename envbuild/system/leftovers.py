"""Unfinished work, named after host and process, so that leftovers of killed processes can be removed.

Work of another host or of a living process is never touched, whichever hosts share the file system.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.system import host, process
from envbuild.system.privacy import parents_others_can_write
from envbuild.system.removal import remove


def own_name() -> str:
    """Return a new file name with this host and process in it."""
    return f"envbuild-{host.name()}-{os.getpid()}-{secrets.token_hex(8)}"


@contextlib.contextmanager
def private_work(parent: Path, *, before: str) -> Iterator[Path]:
    """Yield a private directory, removed afterwards; remove those of killed processes before."""
    sweep(parent, before=before)
    path = parent / (before + own_name())
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        remove(path)


def sweep(parent: Path, *, before: str = "", after: str = "") -> None:
    """Remove what killed processes of this host and user left: names with `own_name` between two texts."""
    # Does not match `login-2` if this host is `login`.
    ours = re.compile(rf"{re.escape(f'{before}envbuild-{host.name()}')}-([0-9]+)-[0-9a-f]+{re.escape(after)}")
    try:
        paths = sorted(parent.iterdir())
    except OSError:
        return
    # Others who can rename our directories could give them such names.
    files_alone = bool(parents_others_can_write(parent / "below"))
    for path in paths:
        owner = ours.fullmatch(path.name)
        if owner is None or Path(f"/proc/{owner[1]}").exists():
            continue
        with contextlib.suppress(OSError, EnvbuildError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and (stat.S_ISREG(status.st_mode) or not files_alone):
                remove_leftover(path)


def remove_leftover(path: Path) -> None:
    """Remove a tree that may contain files of subordinate users, left by a killed step."""
    try:
        remove(path)
    except PermissionError:
        argv, env = ["rm", "-rf", "--", str(path)], host.environment()
        if process.run(["unshare", "--map-root-user", "--map-auto", *argv], env=env, timeout_s=300).ok:
            return
        # unshare(1) maps subordinate ids since util-linux 2.38. mmdebstrap, which made the files, always maps
        # them, but not the user's own: the directories above are ours to remove.
        with contextlib.suppress(EnvbuildError, PermissionError):
            process.run(["mmdebstrap", "--unshare-helper", *argv], env=env, timeout_s=300)
            remove(path)
