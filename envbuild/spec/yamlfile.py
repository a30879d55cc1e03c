"""Reads one YAML mapping as plain values, with the line and column of each.

It works on the parser's events: anchors, aliases, tags and deep nesting are rejected before values are
made, and octal, sexagesimal and date forms of YAML 1.1 stay text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_VALUES = 50_000  # and keys; each costs time and memory, and its error ten times as much
MAX_TAG_DIRECTIVES = 16  # libyaml compares each with all before it; nothing here needs one

Loc = tuple[str | int, ...]
_Event = Any  # of PyYAML; its attributes depend on its class

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_EXAMPLES = "docs/reference has an example of each kind of file"
_CORE = "tag:yaml.org,2002:"
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}|[0-9]{1,40}(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?"
)
_TAG_DIRECTIVE = re.compile(r"^%TAG\b", re.MULTILINE)
# Control characters, lone surrogates, and characters that hide or reorder text on a screen.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML file as plain values with their places."""

    path: Path
    value: dict[str, object] = field(default_factory=dict)
    """Mappings are dict, sequences tuple, scalars str, int, float, bool or None."""
    locations: dict[Loc, Location] = field(default_factory=dict)
    """Steps from the root (key or index) → place of the value."""
    key_locations: dict[Loc, Location] = field(default_factory=dict)
    """Steps from the root → place of the value's key."""
    words: dict[Loc, str] = field(default_factory=dict)
    """Numbers, booleans and nulls as they are written."""
    rejected: set[Loc] = field(default_factory=set)
    """Values that `errors` already names; nothing can be concluded from them."""
    errors: list[EnvbuildError] = field(default_factory=list)
    """Errors that leave the rest of the file readable."""

    def at(self, *loc: str | int) -> Location:
        """Return the place of a value, or of the nearest one around it that the file has."""
        while loc and loc not in self.locations:
            loc = loc[:-1]
        return self.locations.get(loc, Location(path=self.path))

    def at_key(self, *loc: str | int) -> Location:
        """Return the place of a value's key; of the value itself if it has no key (list entries)."""
        return self.key_locations.get(loc) or self.at(*loc)


def scalar_value(text: str) -> str | int | float | bool | None:
    """Return the value of a scalar without quotes."""
    lower = text.lower()
    if lower in ("", "~", "null"):
        return None
    if lower in _BOOLEANS:
        return _BOOLEANS[lower]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) and math.isfinite(float(text)) else text


def scalar_is_text(text: str) -> bool:
    """Return whether a scalar without quotes is text, not a number, boolean or null."""
    return isinstance(scalar_value(text), str)


def shorten(text: str, limit: int = 60) -> str:
    """Return text from a file for a message: one short line without control characters."""
    visible = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text[: limit + 1])
    return visible if len(text) <= limit else visible[:limit] + "…"


def name_of(loc: Loc) -> str:
    """Write steps as people do (``packages.python``); the place shows the indexes."""
    return shorten(".".join(step for step in loc if isinstance(step, str)))


def read_yaml(
    content: bytes,
    path: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_values: int = MAX_VALUES,
    may_be_empty: bool = False,
) -> Document:
    """Read one YAML mapping; errors that leave the rest readable are in the document.

    A file with nothing but comments is an error unless it `may_be_empty`: then it is a mapping without keys.
    A file that is too large, not UTF-8, not YAML or not a mapping raises these and all errors up to there; so
    does one with more than `max_values` keys and values.
    """
    text = _decode(content, path, max_bytes)
    document = Document(path=path)
    try:
        _Builder(text, document, max_values=max_values, may_be_empty=may_be_empty).build()
    except EnvbuildError as error:
        document.errors.append(error)
        raise_all(document.errors)
    except yaml.MarkedYAMLError as error:
        document.errors.append(_syntax_error(error, text, path))
        raise_all(document.errors)
    except (yaml.YAMLError, ValueError, OverflowError):
        # Without libyaml, chr() and int() meet hostile escapes and directives unchecked.
        hint = "write characters themselves instead of escapes, and remove lines that begin with `%`"
        document.errors.append(RequestError("the file is not YAML", at=Location(path=path), hint=hint))
        raise_all(document.errors)
    return document


def _decode(content: bytes, path: Path, max_bytes: int) -> str:
    if len(content) > max_bytes:
        problem = f"the file is too large: {len(content)} bytes, at most {max_bytes} are read"
        raise RequestError(problem, at=Location(path=path), hint="split it, or remove what is not needed")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        at = Location(path=path, line=1, column=1)
        raise RequestError("the file is UTF-16, not UTF-8", at=at, hint="save the file as UTF-8")
    try:
        # Some editors begin a file with a byte order mark, which means nothing in UTF-8.
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8").removeprefix("\ufeff")
        problem = f"byte 0x{content[error.start]:02x} (offset {error.start}) is not UTF-8"
        raise RequestError(problem, at=_after(before, path), hint="save the file as UTF-8") from None
    forbidden = list(_FORBIDDEN.finditer(text))
    if forbidden:
        more = f" (and {len(forbidden) - 1} more like it)" if len(forbidden) > 1 else ""
        problem = f"the character {_codepoint(forbidden[0])} may not be in this file{more}"
        hint = "control and invisible characters are rejected; delete it"
        raise RequestError(problem, at=_after(text[: forbidden[0].start()], path), hint=hint)
    directives = list(_TAG_DIRECTIVE.finditer(text))
    if len(directives) > MAX_TAG_DIRECTIVES:
        problem = f"more than {MAX_TAG_DIRECTIVES} lines begin with `%TAG`"
        at = _after(text[: directives[MAX_TAG_DIRECTIVES].start()], path)
        raise RequestError(problem, at=at, hint="remove them: only plain values are read")
    return text


def _codepoint(match: re.Match[str]) -> str:
    return f"U+{ord(match[0]):04X}"


def _after(before: str, path: Path) -> Location:
    """Return the place of the character that follows `before`; line ends as in YAML."""
    lines = re.split("\r\n|\r|\n", before)
    return Location(path=path, line=len(lines), column=len(lines[-1]) + 1)


class _Builder:
    def __init__(self, text: str, document: Document, *, max_values: int, may_be_empty: bool) -> None:
        self._events = self._limited(yaml.parse(text, Loader=_Loader), max_values)
        self._document = document
        self._may_be_empty = may_be_empty
        self._aliases: set[str] = set()  # in the errors already

    def build(self) -> None:
        next(self._events)  # begin of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            self._check_may_be_empty()
            return
        event = next(self._events)
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and not event.value:
            self._check_may_be_empty()
            self._end()
            return
        if isinstance(event, yaml.ScalarEvent | yaml.SequenceStartEvent):
            problem = "the file is not a mapping of keys to values"
            hint = f"write a line such as `key: value` for each key; {_EXAMPLES}"
            raise RequestError(problem, at=self._at(event), hint=hint)
        value = self._value(event, ())
        self._document.value.update(value if isinstance(value, dict) else {})
        self._end()

    def _end(self) -> None:
        next(self._events)  # end of the document
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._error("a second document begins here", after, hint="one file holds one document")

    def _value(self, event: _Event, loc: Loc) -> object:
        self._document.locations[loc] = self._at(event)
        self._check_depth(event, len(loc))
        if isinstance(event, yaml.AliasEvent):
            self._document.rejected.add(loc)
            self._alias(event)
            return None
        self._check_anchor(event)
        if event.tag is not None and not (event.tag == f"{_CORE}str" and isinstance(event, yaml.ScalarEvent)):
            tag = event.tag.removeprefix(_CORE)
            shown = shorten(tag if tag == event.tag else f"!!{tag}")
            hint = "only plain values are read; remove it"
            self._reject(f"the tag `{shown}` is not allowed", event, loc, hint)
            self._skip(event, len(loc))
            return None
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(loc)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(loc)
        return self._scalar(event, loc)

    def _mapping(self, loc: Loc) -> dict[str, object]:
        entries: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, len(loc) + 1)
            if key is None or (*loc, key) in self._document.key_locations:
                if key is not None:
                    hint = f"it was first given at {self._document.key_locations[*loc, key]}"
                    self._error(f"the key `{shorten(key)}` is given twice", event, hint=hint)
                self._skip(next(self._events), len(loc) + 1)
                continue
            self._document.key_locations[*loc, key] = self._at(event)
            entries[key] = self._value(next(self._events), (*loc, key))
        return entries

    def _sequence(self, loc: Loc) -> tuple[object, ...]:
        entries: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            entries.append(self._value(event, (*loc, len(entries))))
        return tuple(entries)

    def _scalar(self, event: _Event, loc: Loc) -> object:
        text: str = event.value
        if event.implicit[0] and not text:
            subject = f"`{name_of(loc)}`" if isinstance(loc[-1], str) else "an entry"
            at = self._document.at_key(*loc)
            error = RequestError(f"{subject} has no value", at=at, hint="write one, or remove it")
            self._document.errors.append(error)
            self._document.rejected.add(loc)
            return None
        if match := _FORBIDDEN.search(text):
            problem = f"this text holds the character {_codepoint(match)}, which is not allowed"
            self._reject(problem, event, loc, "remove it")
        value = scalar_value(text) if event.implicit[0] else text
        if not isinstance(value, str):
            self._document.words[loc] = text
        return value

    def _key(self, event: _Event, level: int) -> str | None:
        """Return a key; None if it is not allowed, which is then in the errors."""
        if isinstance(event, yaml.AliasEvent):
            self._alias(event)
            return None
        self._check_anchor(event)
        if isinstance(event, yaml.CollectionStartEvent):
            self._error("a key must be text, not a list or a mapping", event, hint="write `key: value`")
            self._skip(event, level)
            return None
        text: str = event.value
        if event.tag is not None:
            self._error("a key has no tag", event, hint="remove it")
        elif event.implicit[0] and text == "<<":
            self._error("merge keys (`<<`) are not allowed", event, hint="write the keys out")
        elif event.implicit[0] and not scalar_is_text(text):
            shown = f"`{shorten(text)}`" if text else "nothing"
            hint = f'write it in quotes: `"{shorten(text)}"`' if text else "write one before the `:`"
            self._error(f"a key must be text, found {shown}", event, hint=hint)
        elif match := _FORBIDDEN.search(text):
            self._error(
                f"this text holds the character {_codepoint(match)}, which is not allowed",
                event,
                hint="remove it",
            )
        else:
            return text
        return None

    def _skip(self, event: _Event, level: int) -> None:
        """Skip a value or key at a level of nesting; what is skipped is bounded, too."""
        depth = int(isinstance(event, yaml.CollectionStartEvent))
        while depth:
            event = next(self._events)
            self._check_depth(event, level + depth)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)

    def _check_depth(self, event: _Event, level: int) -> None:
        """Raise an error for a value that is nested too deep: the parser takes quadratic time."""
        if level >= MAX_DEPTH and not isinstance(event, yaml.CollectionEndEvent):
            hint = "remove brackets: no key here holds so many lists in one another"
            raise RequestError(f"nested deeper than {MAX_DEPTH} levels", at=self._at(event), hint=hint)

    def _limited(self, events: Iterator[_Event], max_values: int) -> Iterator[_Event]:
        """Yield the events; raise an error for a key or value that is one too many, skipped ones included."""
        count = 0
        for event in events:
            count += isinstance(event, yaml.NodeEvent)
            if count > max_values:
                problem = f"the file has more than {max_values:,} keys and values"
                hint = "split it, or remove what is not needed"
                raise RequestError(problem, at=self._at(event), hint=hint)
            yield event

    def _alias(self, event: _Event) -> None:
        if event.anchor not in self._aliases:
            self._aliases.add(event.anchor)
            problem = f"the alias `*{shorten(event.anchor)}` is not allowed"
            self._error(problem, event, hint="write the value out")

    def _check_anchor(self, event: _Event) -> None:
        if event.anchor is not None:
            self._error(f"the anchor `&{shorten(event.anchor)}` is not allowed", event, hint="remove it")

    def _reject(self, problem: str, event: _Event, loc: Loc, hint: str) -> None:
        self._error(problem, event, hint=hint)
        self._document.rejected.add(loc)

    def _error(self, problem: str, event: _Event, *, hint: str) -> None:
        self._document.errors.append(RequestError(problem, at=self._at(event), hint=hint))

    def _check_may_be_empty(self) -> None:
        if not self._may_be_empty:
            raise RequestError("the file is empty", at=Location(path=self._document.path), hint=_EXAMPLES)

    def _at(self, event: _Event) -> Location:
        mark = event.start_mark
        return Location(path=self._document.path, line=mark.line + 1, column=mark.column + 1)


# Words of libyaml and of PyYAML's own parser → our problem and hint. A construct starts at `{begin}`.
_SYNTAX_ERRORS = {
    "mapping values are not allowed": (
        "a `:` that no key belongs to",
        "put text that holds `: ` in quotes; keys of one mapping begin in one column",
    ),
    "could not find expected ':'": ("a `:` is missing after this key", "write `key: value`"),
    "expected ',' or ']'": ("`,` or `]` is missing", "the list begins at {begin}"),
    "expected ',' or '}'": ("`,` or `}}` is missing", "the mapping begins at {begin}"),
    "found unexpected (end of stream|document)": (
        "this quote is never closed",
        "close it on the line where the text ends",
    ),
    "cannot start any token": ("a value without quotes cannot begin with `{here}`", "put it in quotes"),
    "found a tab character": ("a tab may not indent a line", "use spaces"),
    "found unknown escape character": (
        "`{escape}` is not an escape sequence",
        "in single quotes a backslash is a plain character",
    ),
    "invalid Unicode character escape": (
        "an escape sequence here is not the code of a character",
        "write the character itself",
    ),
    "expected (hexd|escape sequence)": (
        "hexadecimal digits are missing in an escape sequence",
        "in single quotes a backslash is a plain character",
    ),
    "expected (key|'-' indicator|<block end>|'?<document start>)": (
        "this does not belong to the lines above",
        "entries of one mapping or list begin in one column",
    ),
    "(sequence entries|mapping keys) are not allowed": (
        "a list or mapping cannot begin here",
        "begin it on a line of its own",
    ),
    "expected (the )?node content": ("a value is missing here", "write it, or remove the line"),
    "found incompatible YAML document": ("an unknown version of YAML", "remove the line"),
}
# Errors that are reported where the construct begins, not where it breaks.
_AT_BEGIN = ("could not find expected ':'", "found unexpected (end of stream|document)")


def _syntax_error(error: yaml.MarkedYAMLError, text: str, path: Path) -> RequestError:
    """Return a syntax error in one sentence with its place."""

    def location(mark: yaml.Mark | None) -> Location:
        # Not the mark's line: at the end of a text libyaml counts a line that is not there.
        return Location(path=path) if mark is None else _after(text[: mark.index], path)

    problem = error.problem or error.context or ""
    mark = error.problem_mark or error.context_mark
    begin = error.context_mark or mark
    here = text[mark.index :] if mark is not None else ""
    escape = shorten("\\" + here.removeprefix("\\")[:1])
    parts = {"begin": location(begin), "here": shorten(here[:1]), "escape": escape}
    if here.startswith("\t") and "cannot start any token" in problem:
        return RequestError("a tab may not begin a value", at=location(mark), hint="use spaces")
    for pattern, (words, hint) in _SYNTAX_ERRORS.items():
        if re.search(pattern, problem):
            at = location(begin if pattern in _AT_BEGIN else mark)
            return RequestError(words.format(**parts), at=at, hint=hint.format(**parts))
    plain = re.sub(r"[<>]", "", problem)
    hint = "check the lines above it, too: this is where the parser stopped"
    return RequestError(f"not valid YAML: {plain}", at=location(mark), hint=hint)
