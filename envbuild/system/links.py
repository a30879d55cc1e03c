"""Follow symbolic links, also within a file system that is not mounted."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from pathlib import Path

_MAX_LINKS = 40


def follow(path: str, look: Callable[[str], str | None], *, start: str = "/") -> tuple[str, str]:
    """Return where a path leads as far as it exists, and the part that does not: empty if all of it does.

    `look` maps an absolute path to the target of the link that lies there, to an empty text for anything
    else, and to None for nothing. A relative path begins at `start`. No link leads above the root.
    """
    here, waiting, links = start, path.split("/")[::-1], 0
    while waiting:
        name = waiting.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = posixpath.dirname(here)
            continue
        below = f"{here.rstrip('/')}/{name}"
        target = look(below)
        links += bool(target)
        if target is None or links > _MAX_LINKS:
            return here, "/".join([name, *waiting[::-1]])
        if target:
            waiting += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here
        else:
            here = below
    return here, ""


def real_path(path: Path) -> Path:
    """Return the absolute path, symbolic links followed; never raises.

    A loop of links stays as it is, so that the error of opening it is reported. `Path.resolve` raises one of
    its own before Python 3.13.
    """
    return Path(os.path.realpath(path))
