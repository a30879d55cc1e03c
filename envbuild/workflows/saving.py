"""Saves a spec and its lock together, unless one of them was changed since it was read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.events import Emit, Note
from envbuild.system import locks
from envbuild.system.files import NOTE_LIMIT_BYTES, check_can_write, read_small, write_atomically

ATTEMPTS = 10
"""How often a command resolves again because another one, or an editor, saved meanwhile (count)."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a spec that is not saved yet."""

    before: bytes
    """Content of the file that was changed."""
    after: bytes


class ChangedMeanwhileError(RequestError):
    """A file was changed by another program after it was read; nothing was written."""

    def __init__(self, spec: Path) -> None:
        hint = "run it again once no other command or editor saves them"
        super().__init__(f"`{spec}` or its lock was changed meanwhile, and nothing was written", hint=hint)


def changed_meanwhile(spec: Path) -> Note:
    """Return the note that a spec is resolved again."""
    return Note(text=f"`{spec}` or its lock was changed meanwhile: resolving again")


def content_of(path: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return read_small(path, limit_bytes=NOTE_LIMIT_BYTES)
    except (OSError, ValueError):
        return None


def save(spec: Path, new: Mapping[Path, bytes], *, seen: Mapping[Path, bytes | None], emit: Emit) -> None:
    """Write `new` contents of files, in order, if all files still have the contents that were `seen`.

    Other commands that save the same spec wait. ChangedMeanwhileError: a file has another content; nothing
    was written. Errors of writing are as of `write_atomically`.
    """
    with _alone(spec, emit) as is_current:
        if not is_current or any(content_of(path) != content for path, content in seen.items()):
            raise ChangedMeanwhileError(spec)
        for path, content in new.items():
            write_atomically(path, content, hint=_elsewhere(spec))


def check_can_save(spec: Path) -> None:
    """Raise a RequestError if no lock can be written beside a spec, before any work."""
    check_can_write(spec.parent, hint=_elsewhere(spec))


def _elsewhere(spec: Path) -> str:
    return f"a lock lies beside its spec: copy `{spec.name}` into a directory of yours"


@contextlib.contextmanager
def _alone(spec: Path, emit: Emit) -> Iterator[bool]:
    """Keep other commands from saving a spec; yield whether the file is still the one that was opened."""
    try:
        file = os.open(spec, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield True  # `seen` says what that means
        return
    try:
        note = Note(text=f"another command saves `{spec}`: waiting for it")
        locks.wait_for_lock(file, shared=False, waiting=lambda: emit(note), patience_s=1.0)
        # The last holder of the lock may have replaced the file.
        yield locks.is_at(spec, file)
    finally:
        os.close(file)
