"""Standard output and error: data and messages, even if the streams are closed or broken."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, MachineError, render
from envbuild.system.descriptors import with_real_paths

_level = 0
_json_is_due = False


def prepare_streams() -> None:
    """Make the standard streams usable, before any file is opened.

    The next file would get the number of a closed stream, and receive messages. So /dev/null takes its place,
    opened in the wrong direction, so that reading or writing still fails.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # it gets the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # a descriptor, open to the end
    # Streams that a test replaced stay.
    if sys.stdout is sys.__stdout__:
        # UTF-8 in every locale, as JSON requires.
        sys.stdout = io.TextIOWrapper(_Data(1, "wb", closefd=False), encoding="utf-8", write_through=True)
    if sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        stream = _Messages(2, "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(stream, encoding, errors="backslashreplace", write_through=True)


def escape(text: str, *, keep: str = "") -> str:
    """Escape unprintable characters except `keep`, so that no text controls a terminal.

    Directories behind descriptors get their names.
    """
    return "".join(
        char if char.isprintable() or char in keep else _escaped(char) for char in with_real_paths(text)
    )


def _escaped(char: str) -> str:
    # As in JSON, with two escapes for a character beyond U+FFFF, so that JSON stays valid.
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def set_level(level: int) -> None:
    """Choose how much a command says: -1 for problems alone, 0, or 1 for everything."""
    global _level  # noqa: PLW0603  # of the process, as its streams are
    _level = level


def level() -> int:
    """Return how much a command says, as `set_level` has it."""
    return _level


def ask_for_json(is_set: bool) -> bool:
    """Note that the command was asked for JSON, or with False that it was not; return the argument."""
    global _json_is_due  # noqa: PLW0603  # of the process, as its streams are
    _json_is_due = is_set
    return is_set


def print_error(error: EnvbuildError) -> None:
    """Write an error to standard error; as JSON to standard output, too, if that was asked for and is due."""
    sys.stderr.write(escape(render(error), keep="\n"))
    if _json_is_due:
        with contextlib.suppress(MachineError):
            print_json({"exit_code": error.exit_code, "errors": error_data(error)})


def error_data(error: EnvbuildError) -> list[dict[str, str | None]]:
    """Return an error, or the several that it stands for, as JSON data."""
    return [
        {"problem": one.problem, "hint": one.hint, "at": str(one.at) if one.at else None}
        for one in error.each()
    ]


def print_message(text: str, *, problem: bool = False) -> None:
    """Write one line for people to standard error, a `problem` also with ``-q``; line breaks are escaped."""
    print_messages(text.replace("\n", "\\n"), problem=problem)


def print_next(words: str) -> None:
    """Write the command of envbuild that most people need next."""
    print_message(f"next: envbuild {words}")


def print_messages(text: str, *, problem: bool = False) -> None:
    """Write lines for people to standard error; see `print_message`."""
    if problem or _level >= 0:
        sys.stderr.write(escape(text, keep="\n\t") + "\n")


def print_data(text: str) -> None:
    """Write text to standard output; MachineError if it is closed, or the disk is full."""
    _write_data(escape(text, keep="\n\t"))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns; line breaks in them are escaped."""
    rows = [[escape(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def named_lines(rows: Iterable[tuple[str, str]]) -> str:
    """Return lines of ``name: value``, without those whose value is empty."""
    return "\n".join(f"{f'{name}:' if name else '':<13}{value}" for name, value in rows if value)


def print_json(data: object) -> None:
    """Write JSON to standard output: dataclasses as objects, paths as strings; errors as `print_data`."""
    # A command prints one document.
    ask_for_json(False)
    # ASCII, so that no text controls the terminal.
    _write_data(with_real_paths(json.dumps(data, indent=2, default=_plain, allow_nan=False)))


def _plain(value: Any) -> object:  # noqa: ANN401  # what JSON does not know
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _write_data(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


class _Stream(io.FileIO):
    """A standard stream without a buffer: text that could not be written is not written again at exit."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401  # whatever holds bytes
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.fileno(), rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            self.fail(error)
        return len(data)

    def fail(self, error: OSError) -> None:
        raise NotImplementedError


class _Data(_Stream):
    """Standard output: a failure ends the command."""

    def fail(self, error: OSError) -> None:
        problem, hint = error.strerror, "free some space behind it, or write elsewhere"
        if error.errno == errno.EBADF:
            problem, hint = "it is closed", "write elsewhere: `> FILE`"
        raise MachineError(f"standard output cannot be written: {problem}", hint=hint) from error


class _Messages(_Stream):
    """Standard error: failures are ignored, and the work goes on."""

    def fail(self, error: OSError) -> None:
        pass
