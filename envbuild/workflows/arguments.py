"""Checks of arguments that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envbuild.errors import MachineError, RequestError
from envbuild.events import Emit, Note, Warned
from envbuild.store.opening import MARKER
from envbuild.system.files import exists, free_bytes, is_below, is_directory
from envbuild.system.links import real_path
from envbuild.system.quota import quota_free_bytes
from envbuild.workflows.settings import store_root

_LITTLE_BYTES = 1_000_000  # so little space is shown with `-v` alone


def check_sources(directories: Sequence[Path]) -> None:
    """Raise a RequestError unless all directories that `envbuild fetch` filled exist."""
    for directory in directories:
        if not is_directory(directory):
            raise RequestError(
                f"there is no directory `{directory}`", hint="`envbuild fetch SPEC --to DIR` fills one"
            )


def lock_path(spec: Path) -> Path:
    """Return the path of a spec's lock: ``STEM.lock.yaml`` beside it."""
    return spec.parent / f"{spec.stem}.lock.yaml"


def output_path(text: str) -> Path:
    """Return the path of an output file.

    RequestError: it ends in a slash and no such directory exists; else a file of that name would be created.
    """
    if text.endswith("/") and not is_directory(Path(text)):
        hint = "name a file, or leave the slash out"
        raise RequestError(f"`{text}` ends in `/`, and names no directory", hint=hint)
    return Path(text)


def output_or_directory(text: str | None) -> tuple[Path | None, Path | None]:
    """Return the path of an output file, or of the directory for several, as a command line names one.

    A directory exists, or is written with a slash at its end. RequestError: the path is empty.
    """
    if text is None:
        return None, None
    if not text:
        raise RequestError("the output path is empty", hint="name a file, or a directory: -o DIR/")
    path = Path(text)
    return (None, path) if text.endswith("/") or is_directory(path) else (path, None)


def check_outside_store(
    path: Path, root: Path | None = None, *, hint: str = "name a place outside it"
) -> None:
    """Raise a RequestError for an output path inside a store, by default the default store.

    Such a file would stop `cache prune`, or be removed by it. Symbolic links are followed.
    """
    try:
        root = store_root(root)
    except RequestError:
        return  # a user without a home has no default store
    # Any store counts: the output of one run may lie in the store of another.
    if is_below(path, root) or any(exists(parent / MARKER) for parent in real_path(path).parents):
        raise RequestError(f"`{path}` is inside the store", hint=hint)


def check_room(
    directory: Path,
    needed: int,
    emit: Emit,
    *,
    least: int | None = None,
    hint: str = "name a file elsewhere with -o NEW.sif, or free some space",
) -> None:
    """Say how much space new files need in a directory, which need not exist; MachineError if there is less.

    If that is an estimate, `least` is what they need in any case, in bytes. A quota that can be read
    counts if it leaves less than the file system has; shared blocks need less.
    """
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if exists(path))
    free, where = free_bytes(there), "free"
    if (quota := quota_free_bytes(there)) is not None and quota < free:
        free, where = quota, "free in your quota"
    about, least = ("", needed) if least is None else ("about ", least)
    text = f"{about}{_megabytes(needed)} are needed in `{directory}`, {_megabytes(free)} are {where}"
    is_little = needed < _LITTLE_BYTES
    emit(
        Note(text=text, detail=is_little) if free >= needed or free < least else Warned(text=text, hint=hint)
    )
    if free < least:
        problem = (
            f"there is no space for {_megabytes(least)} in `{directory}`: {_megabytes(free)} are {where}"
        )
        raise MachineError(problem, hint=hint)


def _megabytes(size_bytes: int) -> str:
    """Return a size in words; of a few megabytes, the tenths decide."""
    return f"{size_bytes / 1e6:.{0 if size_bytes >= 10_000_000 else 1}f} MB"
