"""A private work directory that processes of other users can pass through.

In a user namespace a subordinate user id does the work and must reach its files, which it cannot below a home
directory of mode 0700.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import BuildError, MachineError
from envbuild.system.files import is_writable_directory
from envbuild.system.leftovers import own_name, sweep
from envbuild.system.privacy import parents_others_can_write
from envbuild.system.removal import remove
from envbuild.system.space import named_directories


@contextlib.contextmanager
def traversable_directory() -> Iterator[Path]:
    """Yield a directory with an unguessable name that other users can enter but not list.

    It lies below the first of the configured directory, TMPDIR and /var/tmp that others can enter, in which
    they cannot rename it, and whose name has no ``%``, which apt reads as an escape. It is removed
    afterwards, unless a BuildError is raised. MachineError: the configured directory cannot be written to, or
    no directory can be made.
    """
    named = named_directories()
    if named and named[0].origin != "TMPDIR" and not is_writable_directory(Path(named[0].value)):
        raise MachineError(
            f"{named[0].origin} names `{named[0].value}`, which is not a directory that you can write to",
            hint="name a local directory there, or remove the setting",
        )
    # Resolved: another user may own a link in the path.
    parents = [*(Path(entry.value) for entry in named), Path("/var/tmp"), Path("/tmp")]  # noqa: S108  # the name is unguessable
    for parent in map(Path.resolve, parents):
        if "%" in str(parent) or not _passable(parent) or parents_others_can_write(parent / "below"):
            continue
        path = parent / own_name()
        try:
            path.mkdir(mode=0o700)
        except OSError:
            continue
        sweep(parent)
        path.chmod(0o711)
        try:
            yield path
        except BuildError:
            raise  # kept, so that the failed step can be repeated; the next sweep removes it
        except BaseException:
            remove(path)
            raise
        remove(path)
        return
    raise MachineError(
        "no temporary directory that other users' processes can pass through",
        hint="name one with ENVBUILD_TMPDIR, all of whose parents have mode 0711 or more, and no other user's"
        " or group's permission to write",
    )


def _passable(path: Path) -> bool:
    try:
        return all(stat.S_IMODE(place.stat().st_mode) & stat.S_IXOTH for place in (path, *path.parents))
    except OSError:
        return False
