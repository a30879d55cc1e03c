"""Splits shell text into simple commands. Runs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from envbuild.spec.model import MAX_TEXT

_MAX_SCRIPT = 32 << 10  # shlex takes quadratic time
UNCLOSED_QUOTES = "its quotes do not end"
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DISCARDED_OUTPUT = re.compile(r"[ \t]*(?:\d|&)?>>?[ \t]*(?:/dev/null|&\d)(?=[\s;&|)]|$)")
# A version constraint, `scipy>=1.11`, is not a redirection.
_REDIRECTION = re.compile(r"^\d*[<>]|[<>](?!=?\s*[\"']?\d)")
_KEYWORD = re.compile(
    r"if|then|else|elif|fi|for|while|until|do|done|case|esac|function|[{}!.]|\[\[?|eval|source"
)


def split_script(script: str, line: int) -> Iterator[tuple[int, list[str], str]]:
    """Yield the commands of a script that begins at a line.

    Each item: its line, its words without quotes but with their variables, and why it is not understood;
    empty if it is.
    """
    if "<<" in script or len(script) > _MAX_SCRIPT:
        yield line, script[:MAX_TEXT].split(), "a here-document or a long script is not understood"
        return
    # A mark in place of a continuation keeps the count of lines.
    marked = re.sub(r"\\[ \t\r]*\n", "\v", script.replace("\v", " "))
    lexer = shlex.shlex(_DISCARDED_OUTPUT.sub("", marked), posix=True, punctuation_chars=";&|()\v")
    lexer.whitespace_split = True
    lexer.commenters = ""  # shlex looks for comments inside words, too
    words: list[str] = []
    start, problem = line, ""
    token: str | None = ""
    while token is not None:
        try:
            token = lexer.get_token()
        except ValueError:
            token, problem = None, UNCLOSED_QUOTES
            words.append(lexer.token)
        if token is not None and token.startswith("#"):
            token = None  # a comment ends the script
        if token is None or re.fullmatch(r"\v*\)*(;|&&|\|\|)\v*", token):
            words += [")"] * (token or "").count(")")
            if words:
                yield start, words, problem or _problem(words)
            words = []
        elif word := token.replace("\v", ""):
            start = start if words else line
            words.append(word)
        line += (token or "").count("\v")


def _problem(words: list[str]) -> str:
    if _KEYWORD.fullmatch(words[0]) or any(word[0] in "&|()" for word in words):
        return "it is not a simple command"
    if any(_REDIRECTION.search(word) for word in words):
        return "it reads or writes a file: keep the file beside the spec and name it under `files`"
    return ""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the values of known variables, which could grow without limit in a long text."""
    if len(text) > MAX_TEXT:
        return text
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], match[0]), text)


def is_unresolved(text: str) -> bool:
    """Return whether a text depends on an unknown variable or on another command."""
    return "$" in text or "`" in text
