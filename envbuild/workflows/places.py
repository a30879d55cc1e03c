"""Checks of output paths."""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import RequestError
from envbuild.system.files import file_named, is_below
from envbuild.workflows.settings import default_root

__all__ = ["file_named", "refuse_in_store"]


def refuse_in_store(path: Path, root: Path | None = None, *, hint: str = "name a place outside it") -> None:
    """Refuse an output path inside the store, where it would stop `cache prune` or be removed by it.

    Parameters
    ----------
    root : Path, optional
        The store; the default store if absent.

    Raises
    ------
    RequestError
        It is inside, symbolic links followed.
    """
    try:
        root = root or default_root()
    except RequestError:
        return  # a user without a home has no default store
    if is_below(path, root):
        raise RequestError(f"`{path}` is inside the store", hint=hint)
