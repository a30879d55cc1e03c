"""The rules and tables that come with this program."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from envbuild.compat.rules import Rulebook, load_rules


@cache
def builtin() -> Rulebook:
    """Return them, read once, the files in the order of their names.

    Raises
    ------
    RequestError, ManyErrors
        A file is wrong; the tests see to it that none is.
    """
    directory = resources.files("envbuild.compat") / "data"
    files = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(".yaml"))
    return load_rules({Path(name): (directory / name).read_bytes() for name in files})
