"""The three standard streams, in whatever state they were given: closed, full, or of another encoding."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from typing import Any

from envbuild.errors import MachineError
from envbuild.system.descriptors import named

# What steers a terminal, hides or reorders text on it, or is no text at all. Four hexadecimal digits are
# enough for each, so that what stands for it is right in JSON, too.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def prepare() -> None:
    """Make the standard streams fit to be used, before anything is opened.

    The number of a closed one would be given to the next file, which would then receive what is told to
    people: /dev/null takes its place, opened the wrong way round, so that using it fails as before. A
    standard error that cannot be written ends nothing.
    """
    for descriptor, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # it gets the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # a descriptor, open to the end
    # Those of another are left alone: a test's, say.
    if sys.stdout is sys.__stdout__:
        # In every locale: so JSON has to be.
        sys.stdout = io.TextIOWrapper(_Data(1), encoding="utf-8", write_through=True)
    if sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        sys.stderr = io.TextIOWrapper(
            _Words(2), encoding=encoding, errors="backslashreplace", write_through=True
        )


def say(text: str) -> None:
    """Write a line for people: to standard error, since standard output carries data only.

    A name that holds a line break cannot pretend to be another line.
    """
    say_lines(text.replace("\n", "\\n"))


def say_lines(text: str) -> None:
    """Write several lines for people."""
    sys.stderr.write(_tamed(text) + "\n")


def put(text: str) -> None:
    """Write data to standard output.

    Raises
    ------
    MachineError
        It cannot be written: it is closed, or the disk behind it is full.
    """
    sys.stdout.write(_tamed(text if text.endswith("\n") else text + "\n"))
    sys.stdout.flush()


def _tamed(text: str) -> str:
    """Return text with directories' names for descriptors, and escapes for what steers a terminal."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", named(text))


class _Direct(io.RawIOBase):
    """A descriptor that is written at once: what failed is not left over, to fail again at the end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:  # noqa: ANN401  # whatever holds bytes
        whole = memoryview(data)
        rest = whole
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise  # whoever read it has gone, which ends us
        except OSError as error:
            self._fail(error)
        return len(whole)

    def _fail(self, error: OSError) -> None:
        raise NotImplementedError


class _Data(_Direct):
    """Standard output: who asked for data is told that there is none."""

    def _fail(self, error: OSError) -> None:
        is_closed = error.errno == errno.EBADF
        raise MachineError(
            f"standard output cannot be written: {'it is closed' if is_closed else error.strerror}",
            hint="write elsewhere: `> FILE`"
            if is_closed
            else "free some space behind it, or write elsewhere",
        ) from error


class _Words(_Direct):
    """Standard error: nobody can be told that nobody can be told, and the work goes on."""

    def _fail(self, error: OSError) -> None:
        pass
