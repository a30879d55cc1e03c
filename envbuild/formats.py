"""Numbers of formats: a file of another format than this version reads is refused, with the way out.

A leaf module. docs/reference/stability.md lists the formats, and when their numbers are raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

NEWER = "a newer version of envbuild wrote it: use that version or a later one"
"""The hint for files of a format to come."""
_MOST_DIGITS = 9


class FormatError(ValueError):
    """A file has another format than those that this version reads.

    `number` is its format as the file states it, of any type: files are untrusted input.
    """

    def __init__(self, number: object, *read: int) -> None:
        known = f"format {read[0]}" if len(read) == 1 else f"formats {' and '.join(map(str, read))}"
        super().__init__(f"it has {_named(number)}, and this version of envbuild reads {known}")
        self.is_newer = type(number) is int and number > max(read)


def check_format(number: object, *read: int) -> None:
    """Raise a FormatError unless a number is that of a format that this version reads."""
    if type(number) is not int or number not in read:
        raise FormatError(number, *read)


def format_error(error: ValidationError, *read: int) -> FormatError | None:
    """Return the error of the key `format` or `schema` of a document that a program wrote, if it has one."""
    for problem in error.errors(include_url=False):
        if problem["loc"] in (("format",), ("schema",)):
            return FormatError(None if problem["type"] == "missing" else problem["input"], *read)
    return None


def is_newer(error: Exception) -> bool:
    """Return whether a file cannot be read because it has a format to come."""
    return isinstance(error, FormatError) and error.is_newer


def hint_for(error: Exception, otherwise: str) -> str:
    """Return the hint for a file that cannot be read: `NEWER` for a format to come, else another one."""
    return NEWER if is_newer(error) else otherwise


def _named(number: object) -> str:
    if type(number) is not int:
        return "no number of a format"
    return f"format {number}" if len(str(abs(number))) <= _MOST_DIGITS else "a format of an unknown number"
