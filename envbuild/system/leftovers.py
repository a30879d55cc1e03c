"""Work in progress with its owner's name on it, so that what a killed process left can be told and removed.

The name holds host and process: another host's work is never touched, nor a
living process's, whoever shares the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.system import host, process
from envbuild.system.privacy import open_parents
from envbuild.system.removal import remove


def own_name() -> str:
    """Return a new file name that tells which process it belongs to."""
    return f"envbuild-{host.name()}-{os.getpid()}-{secrets.token_hex(8)}"


def private_directory(parent: Path, *, before: str = "") -> Path:
    """Make a directory of mode 0700 whose name tells which process it belongs to.

    Parameters
    ----------
    before : str
        What the name begins with; `sweep` is to be told the same.
    """
    path = parent / (before + own_name())
    path.mkdir(mode=0o700)
    return path


@contextlib.contextmanager
def private_work(parent: Path, *, before: str) -> Iterator[Path]:
    """Yield a private directory that is gone afterwards, once those of killed processes are."""
    sweep(parent, before=before)
    path = private_directory(parent, before=before)
    try:
        yield path
    finally:
        remove(path)


def half_of(target: Path) -> Path:
    """Return where to write a file before it takes its place, once half ones of killed processes are gone."""
    # Shortened, so that it is no longer than a name may be where the target's is not.
    before, after = f".{os.fsdecode(os.fsencode(target.name)[:100])}.", ".partial"
    sweep(target.parent, before=before, after=after)
    return target.parent / f"{before}{own_name()}{after}"


def sweep(parent: Path, *, before: str = "", after: str = "") -> None:
    """Remove what processes of this host and user made and did not live to remove.

    Parameters
    ----------
    before, after : str
        What stands around `own_name` in the names.
    """
    # Told from those of `login-2` where this host is `login`.
    ours = re.compile(rf"{re.escape(f'{before}envbuild-{host.name()}')}-([0-9]+)-[0-9a-f]+{re.escape(after)}")
    try:
        found = sorted(parent.iterdir())
    except OSError:
        return
    # Where others can rename what is ours, they could give our directories the names of leftovers.
    files_alone = bool(open_parents(parent / "below"))
    for path in found:
        owner = ours.fullmatch(path.name)
        if owner is None or Path(f"/proc/{owner[1]}").exists():
            continue
        with contextlib.suppress(OSError, EnvbuildError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and (stat.S_ISREG(status.st_mode) or not files_alone):
                remove_leftover(path)


def remove_leftover(path: Path) -> None:
    """Remove a tree in which a killed step may have left files of subordinate users."""
    try:
        remove(path)
    except PermissionError:
        argv = ["unshare", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(path)]
        process.run(argv, env=host.environment(), timeout_s=300)


@contextlib.contextmanager
def atomic_file(path: Path, *, mode: int) -> Iterator[int]:
    """Give a new file, open for writing, that takes its place when the block ends; it is gone if that fails.

    Parameters
    ----------
    path : Path
        Its place; a file there is replaced.
    mode : int
        Its mode, less the umask.

    Raises
    ------
    OSError
        It cannot be written; or something else than a regular file is there.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if path.exists() and not path.is_file():
        # Replacing /dev/null or a named pipe is never meant.
        raise PermissionError(errno.EPERM, "it is not a regular file")
    partial = half_of(path)
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            yield file
            os.fsync(file)
        finally:
            # Before it has its name: a file that somebody writes cannot be executed.
            os.close(file)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some network file systems cannot; the file itself is safe by then.
        with contextlib.suppress(OSError):
            os.fsync(directory)
    finally:
        os.close(directory)
