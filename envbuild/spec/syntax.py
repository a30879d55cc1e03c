"""YAML syntax errors in short words: PyYAML's own are a page each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from envbuild.errors import Location, RequestError


@dataclass(frozen=True, slots=True)
class _Words:
    """What we say instead of PyYAML's `pattern`."""

    pattern: str
    problem: str
    hint: str
    at_begin: bool = False  # the place is where the construct began, not where it broke


# What YAML says in words that have none of ours.
_OTHERWISE = "see the lines before it, too: YAML tells where it gave up"

_ALL_WORDS = (
    _Words(
        "mapping values are not allowed here",
        "a `:` that no key belongs to",
        "put text that holds `: ` in quotes; keys of one mapping begin in one column",
    ),
    _Words(r"found character '\\t' that cannot start any token", "a tab may not begin a value", "use spaces"),
    _Words(
        r"found character (['\"])(?P<what>.+)\1 that cannot start any token",
        "a value without quotes cannot begin with `{what}`",
        "put it in quotes",
    ),
    _Words("could not find expected ':'", "a `:` is missing after this key", "write `key: value`", True),
    _Words("expected ',' or ']', but got .*", "`,` or `]` is missing", "the list begins at {began}"),
    _Words("expected ',' or '}', but got .*", "`,` or `}}` is missing", "the mapping begins at {began}"),
    _Words(
        "found unexpected (end of stream|document separator)",
        "this quote is never closed",
        "close it on the line where the text ends",
        True,
    ),
    _Words(
        r"found unknown escape character (['\"])(?P<what>.+)\1",
        "`\\{what}` is not an escape sequence",
        "in single quotes a backslash stands for itself",
    ),
    _Words(
        "expected escape sequence of .*",
        "hexadecimal digits are missing in an escape sequence",
        "in single quotes a backslash stands for itself",
    ),
    _Words(
        "expected <block end>, but found .*",
        "this does not belong to the lines above",
        "entries of one mapping or list begin in one column",
    ),
    _Words(
        "(sequence entries|mapping keys) are not allowed here",
        "a list or mapping cannot begin here",
        "begin it on a line of its own",
    ),
    _Words(
        "expected the node content, but found .*",
        "a value is missing here",
        "write it, or take the line away",
    ),
    _Words(
        "expected '<document start>', but found .*",
        "this does not belong to the lines above",
        "one file holds one document",
    ),
    _Words("found incompatible YAML document.*", "a version of YAML that is not known", "take the line away"),
)


def explain_syntax(error: yaml.YAMLError, path: Path) -> RequestError:
    """Turn PyYAML's error into one sentence with its place."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return RequestError("the file is not YAML", at=Location(path=path), hint=_OTHERWISE)
    mark = error.problem_mark or error.context_mark
    began = error.context_mark or mark
    problem = error.problem or error.context or ""
    for words in _ALL_WORDS:
        match = re.fullmatch(words.pattern, problem, re.DOTALL)
        if match:
            place = _location(path, began if words.at_begin else mark)
            parts = {"what": match.groupdict().get("what", ""), "began": str(_location(path, began))}
            hint = words.hint.format(**parts)
            return RequestError(words.problem.format(**parts), at=place, hint=hint)
    plain = re.sub(r"[<>]", "", problem)
    return RequestError(f"not valid YAML: {plain}", at=_location(path, mark), hint=_OTHERWISE)


def _location(path: Path, mark: yaml.Mark | None) -> Location:
    if mark is None:
        return Location(path=path)
    return Location(path=path, line=mark.line + 1, column=mark.column + 1)
