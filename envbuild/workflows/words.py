"""Words of command lines that messages suggest, quoted for a shell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def typed(path: Path | str) -> str:
    """Return a path as a word of a command line, which no program takes for an option."""
    text = os.fspath(path)
    return quoted(f"./{text}" if text.startswith("-") else text)


def quoted(text: str) -> str:
    r"""Return a word of a command line: quoted where that is needed.

    Unprintable characters stand in ``$'…'`` as bytes: a form of bash, zsh, ksh and POSIX 2024.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(char: str) -> str:
    if char.isprintable():
        return f"\\{char}" if char in "\\'" else char
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
