"""Kept results of benchmarks: with them the next result of a site is compared."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from envbuild.bench.result import BENCH_FORMAT, BenchResult
from envbuild.digests import sha256_of
from envbuild.errors import MachineError, RequestError
from envbuild.events import Emit, Warned, ignore
from envbuild.formats import NEWER, format_error
from envbuild.system.files import list_directory, make_directory, read_small, write_atomically

_MOST_FILES, _MOST_BYTES = 500, 4 << 20


def default_directory() -> Path:
    """Return ``envbuild/bench`` in the user's state directory (XDG Base Directory Specification).

    RequestError: the user has no home directory.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state) / "envbuild/bench"
    try:
        return Path.home() / ".local/state/envbuild/bench"
    except RuntimeError:
        raise RequestError(
            "there is no home directory for results", hint="name a directory with --results DIR"
        ) from None


def check(directory: Path) -> None:
    """Raise a MachineError for a directory in which no result could be kept, before any is measured."""
    try:
        make_directory(directory)
        reason = "" if os.access(directory, os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        hint = "name another directory with --results DIR"
        raise MachineError(f"results cannot be kept in `{directory}`: {reason}", hint=hint)


def read(directory: Path, name: str, emit: Emit = ignore) -> list[BenchResult]:
    """Read the latest kept results of images of a name, oldest first; files of other kinds are ignored.

    Results of a newer version of envbuild are left out with a warning.
    """
    files = sorted(file for file in list_directory(directory) if file.startswith(_prefix(name)))
    results = []
    for file in files[-_MOST_FILES:]:
        try:
            text = read_small(directory / file, limit_bytes=_MOST_BYTES)
            results.append(BenchResult.model_validate_json(text))
        except ValidationError as error:
            other_format = format_error(error, BENCH_FORMAT)
            if other_format is not None and other_format.is_newer:
                emit(Warned(text=f"`{directory / file}` is not compared: {other_format}", hint=NEWER))
        except (OSError, ValueError):
            continue
    return results


def keep(directory: Path, result: BenchResult) -> None:
    """Keep a result; its file is named by the image's name, time and content."""
    content = result.to_json().encode()
    make_directory(directory)
    time = "".join(char for char in result.when if char.isalnum())
    file = f"{_prefix(result.image.name)}{time}-{sha256_of(content)[7:19]}.json"
    write_atomically(directory / file, content)


def _prefix(name: str) -> str:
    """Return the beginning of the names of files for an image's name, which may hold any character."""
    return f"{sha256_of(name.encode())[7:19]}-"
