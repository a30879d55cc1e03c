"""Places that are named for what a command writes."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError
from envbuild.system.files import file_named, is_below
from envbuild.workflows.settings import default_root

__all__ = ["file_named", "refuse_in_store"]


def refuse_in_store(path: Path, root: Path | None = None, *, hint: str = "name a place outside it") -> None:
    """Refuse a place in the store: what is strange there stops `cache prune`, or is taken away by it.

    Parameters
    ----------
    root : Path, optional
        The store; the one that is used unless another is named if absent.

    Raises
    ------
    RequestError
        It lies there, symbolic links followed.
    """
    try:
        root = root or default_root()
    except RuntimeError:
        return  # who has no home has no store in it
    if is_below(path, root):
        raise RequestError(f"`{path}` lies in the store, which holds nothing but its own", hint=hint)
