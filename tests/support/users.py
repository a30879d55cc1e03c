"""Root and other users, for tests that run as an ordinary user.

They exist in a user namespace of the tester alone: the tester keeps their id there, and their
subordinate ids are those of root and other users. Root of such a namespace may do there what root may do
with the tester's files, and nothing on the machine.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OTHER_USER = 2
"""Id of somebody else in the namespace, who has no account."""


def user_name() -> str:
    """Return the login name of who runs the tests."""
    return pwd.getpwuid(os.getuid()).pw_name


def in_user_namespace(*options: str) -> list[str]:
    """Return a command prefix that enters a new user namespace as its root.

    Parameters
    ----------
    options : str
        Further options of unshare(1), such as ``--net``.
    """
    own = ["--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
    others = ["--map-users=auto", "--map-groups=auto", "--keep-caps"]
    return ["unshare", *own, *others, "setpriv", *_ids(0, 0), "unshare", *options, "--"]


def as_root(argv: Sequence[str | Path]) -> list[str]:
    """Return the command line that runs another as root of a new user namespace."""
    return [*in_user_namespace(), *map(str, argv)]


def becoming(uid: int, gid: int) -> list[str]:
    """Return a command prefix that turns root into a user without privileges."""
    return ["setpriv", *_ids(uid, gid), "--inh-caps=-all", "--ambient-caps=-all", "--"]


def _ids(uid: int, gid: int) -> list[str]:
    return [f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]


@contextmanager
def shared_directory() -> Iterator[Path]:
    """Give a directory that other users can reach, too; pytest's own are 0700."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="envbuild-test-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        remove(path)


def remove(*paths: Path) -> None:
    """Remove directories with all that is in them, whoever of the namespace's users it belongs to."""
    subprocess.run(as_root(["rm", "-rf", "--", *paths]), check=True)
