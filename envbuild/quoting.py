"""Quotes words of command lines, which messages and files show."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def shell_path(path: Path | str) -> str:
    """Return a path as a word of a command line, which no program takes for an option."""
    text = os.fspath(path)
    return shell_quote(f"./{text}" if text.startswith("-") else text)


def shell_line(words: Sequence[str]) -> str:
    """Return a command line for a shell."""
    return " ".join(map(shell_quote, words))


def shell_quote(text: str) -> str:
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
