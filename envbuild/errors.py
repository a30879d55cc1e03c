"""Errors for users: what is wrong, where, and what to do next.

A leaf module. Loaders collect errors and raise them together; `envbuild.cli` renders them and turns
`exit_code` into the exit status. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

MAX_ERRORS = 50  # that are shown at once


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Location:
    """A place in a text file."""

    path: Path
    """As the user named it."""
    line: int = 0
    column: int = 0
    """Counted from 1; 0 if only the file is known."""

    def __str__(self) -> str:
        if self.line == 0:
            return str(self.path)
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class SpecKey:
    """A key of the spec in a hint; where there is no spec yet, it is an option of `envbuild init`."""

    name: str
    value: str = ""
    """The value to write; empty for any."""
    holds_names: bool = False
    """Whether names are listed under it (``frameworks``)."""
    at: Location | None = None
    """Where it stands in the spec, if the hint is to say so."""

    def __str__(self) -> str:
        if self.holds_names:
            return f"under `{self.name}` of the spec"
        line = f"`{self.name}: {self.value}`" if self.value else f"`{self.name}:`"
        return f"{line} ({self.at})" if self.at is not None else line


Hint = str | Sequence[str | SpecKey]
"""A sentence, or the parts of one."""


class EnvbuildError(Exception):
    """An error that the user can fix.

    `problem` is one sentence without a full stop: what is wrong. `hint` says what to do next and is never
    empty; `at` is where it is wrong.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, problem: str, *, hint: Hint, at: Location | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at
        self._hint = hint

    @property
    def hint(self) -> str:
        """What to do next."""
        return self.hint_with(str)

    @hint.setter
    def hint(self, hint: Hint) -> None:
        self._hint = hint

    def hint_with(self, shown: Callable[[SpecKey], str]) -> str:
        """Return the hint with its keys of a spec as a function shows them."""
        parts = (self._hint,) if isinstance(self._hint, str) else self._hint
        return "".join(part if isinstance(part, str) else shown(part) for part in parts)

    def each(self) -> Sequence[EnvbuildError]:
        """Return the single errors of this one."""
        return (self,)


class RequestError(EnvbuildError):
    """The request is wrong (exit code 2)."""


class BuildError(EnvbuildError):
    """A build step failed (exit code 3)."""

    exit_code = 3


class CheckError(EnvbuildError):
    """A check failed (exit code 4)."""

    exit_code = 4


class MachineError(EnvbuildError):
    """The machine lacks something (exit code 5)."""

    exit_code = 5


class MoreErrors(RequestError):
    """Stands for errors that are not shown."""

    def __init__(self, number: int, at: Location | None) -> None:
        super().__init__(f"and {pluralize(number, 'more error')}", at=at, hint="fix these first")
        self.number = number


class ManyErrors(EnvbuildError):
    """Several errors, in the order of their places.

    The exit code is that of the first one after ordering.
    """

    def __init__(self, errors: Sequence[EnvbuildError]) -> None:
        flat = [single for error in errors for single in error.each()]
        if not flat:
            raise ValueError("ManyErrors needs at least one error")
        # Stable: errors without a place keep their order behind those with one.
        flat.sort(key=_order)
        super().__init__("; ".join(e.problem for e in flat), hint="; ".join(e.hint for e in flat))
        self.errors: tuple[EnvbuildError, ...] = tuple(flat)
        self.exit_code = flat[0].exit_code  # type: ignore[misc]  # differs by instance here

    def each(self) -> Sequence[EnvbuildError]:
        """Return the collected errors."""
        return self.errors


def _order(error: EnvbuildError) -> tuple[bool, bool, Location]:
    return isinstance(error, MoreErrors), error.at is None, error.at or Location(path=Path())


def bounded(errors: Sequence[EnvbuildError], more: int = 0) -> list[EnvbuildError]:
    """Return errors in the order of their places, at most `MAX_ERRORS`, and how many more there are."""
    flat = sorted((single for error in errors for single in error.each()), key=_order)
    more += sum(error.number for error in flat if isinstance(error, MoreErrors))
    shown = [error for error in flat if not isinstance(error, MoreErrors)]
    more += len(shown[MAX_ERRORS:])
    last = [MoreErrors(more, shown[:MAX_ERRORS][-1].at)] if more else []
    return [*shown[:MAX_ERRORS], *last]


def from_os_error(error: OSError) -> EnvbuildError:
    """Return the error for a file operation that failed: which file, and why."""
    if error.filename is None:
        hint = "free some space where the store, the outputs and temporary files lie"
        return MachineError(f"a file cannot be written: {error.strerror}", hint=hint)
    problem = f"`{error.filename}`: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return MachineError(problem, hint="free some space there, or name another place")
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return RequestError(problem, hint="name another path")
    return MachineError(problem, hint="see who may use it, and what file system it is on")


def is_user_error(error: OSError) -> bool:
    """Return whether a failed file operation is an error for users: it names its file, or a disk is full.

    A closed pipe is not an error, and any other one is a bug.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    return not isinstance(error, BrokenPipeError) and (error.filename is not None or full)


@contextmanager
def collected(errors: list[EnvbuildError]) -> Iterator[None]:
    """Add an error of the block to others, which `raise_all` reports together."""
    try:
        yield
    except EnvbuildError as error:
        errors.append(error)


def raise_all(errors: Sequence[EnvbuildError]) -> None:
    """Raise collected errors, if any: the single one, or all at once, of very many the first."""
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    raise ManyErrors(bounded(errors))


def pluralize(number: int, what: str) -> str:
    """Return a count with its noun: ``1 file``, ``2 files``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 4) -> str:
    """Return the first of some names, and how many more there are: ``a, b, c, d and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(word: str, known: Sequence[str]) -> str | None:
    """Return ``did you mean `x`?`` for the nearest of the known words, or None."""
    nearest = near(word, known)
    return f"did you mean `{nearest[0]}`?" if nearest else None


def near(word: str, known: Sequence[str], *, cutoff: float = 0.6) -> list[str]:
    """Return the known words that a word may mean, the nearest first; `cutoff` is 1 for the same word."""
    return get_close_matches(word, known, n=max(len(known), 1), cutoff=cutoff)


def render(error: EnvbuildError) -> str:
    """Return an error as text: problem, place, empty line, hint; an empty line between several errors."""
    blocks = []
    for single in error.each():
        lines = [f"error: {single.problem}"]
        if single.at is not None:
            lines.append(f"  --> {single.at}")
        blocks.append("\n".join([*lines, "", f"hint: {single.hint}"]) + "\n")
    return "\n".join(blocks)
