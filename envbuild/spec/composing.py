"""Compose YAML without guessing: no anchors, aliases, foreign tags or deep nesting.

Built on PyYAML's composer. What a plain scalar means is decided here: YAML 1.1's octal, sexagesimal
and date forms stay text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from envbuild.errors import Location, RequestError, raise_all

MAX_DEPTH = 16

CORE = "tag:yaml.org,2002:"
STR, INT, FLOAT, BOOL, NULL, MAP, SEQ = (
    CORE + name for name in ("str", "int", "float", "bool", "null", "map", "seq")
)
_FITTING = {
    yaml.ScalarNode: {STR, INT, FLOAT, BOOL, NULL},
    yaml.MappingNode: {MAP},
    yaml.SequenceNode: {SEQ},
}

_TRUE = {"true", "yes", "on"}
_FALSE = {"false", "no", "off"}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}|[0-9]{1,40}(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?"
)

# In an ASCII text with none of these, libyaml and PyYAML's own scanner find the same: libyaml takes tabs for
# blanks, a question mark within brackets for text, and a remark right behind `>`.
_READ_OTHERWISE = re.compile(r"[\t\r?]|[|>][-+0-9]*#")


class Refused(yaml.ScalarNode):
    """Stands where something was refused, so that nothing more is said of it."""


def scalar_is_text(text: str) -> bool:
    """Return whether a plain scalar stays text, and is not read as a number, a truth or nothing."""
    return scalar_tag(text) == STR


def scalar_tag(text: str) -> str:
    """Say what a plain scalar is."""
    lower = text.lower()
    if lower in ("", "~", "null"):
        return NULL
    if lower in _TRUE | _FALSE:
        return BOOL
    if _INT.fullmatch(text):
        return INT
    return FLOAT if _FLOAT.fullmatch(text) and math.isfinite(float(text)) else STR


def locate(path: Path, mark: yaml.Mark) -> Location:
    """Turn PyYAML's mark, counted from 0, into a place."""
    return Location(path=path, line=mark.line + 1, column=mark.column + 1)


def scalar_value(tag: str, text: str) -> object:
    """Return the value of a scalar that fits its tag.

    Raises
    ------
    KeyError
        The tag is none of a scalar.
    """
    return _CONVERT[tag](text)


_CONVERT: dict[str, Callable[[str], object]] = {
    STR: str,
    INT: int,
    FLOAT: float,
    BOOL: lambda text: text.lower() in _TRUE,
    NULL: lambda _: None,
}


def shorten(text: str, limit: int = 60) -> str:
    """Make text from a file fit for a message: one line, no control characters, not long."""
    visible = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text[: limit + 1])
    return visible if len(text) <= limit else visible[:limit] + "…"


class Strict(Composer, Resolver):
    """PyYAML's composer without anchors, aliases, foreign tags and deep nesting; others give it events."""

    def __init__(self, path: Path) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self.path = path
        self.mistakes: list[RequestError] = []
        self._depth = 0
        self._aliases: set[str] = set()  # told already

    def compose_only(self) -> yaml.Node | None:
        """Compose the only document; None where there is none."""
        self._next()
        if self._is(yaml.StreamEndEvent):
            return None
        root: yaml.Node | None = self.compose_document()
        if not self._is(yaml.StreamEndEvent):
            self._refuse("a second document begins here", self._peek(), "one file holds one document")
        return root

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:  # noqa: ANN401  # PyYAML's types
        """Say what a node without a tag is."""
        if kind is yaml.ScalarNode:
            return scalar_tag(value) if implicit[0] else STR
        return MAP if kind is yaml.MappingNode else SEQ

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401  # as above
        """Compose a node, or its stand-in where it is refused."""
        event = self._peek()
        if self._is(yaml.AliasEvent):
            self._next()
            if event.anchor not in self._aliases:
                self._aliases.add(event.anchor)
                self._refuse(
                    f"the alias `*{shorten(event.anchor)}` is not allowed", event, "write the value out"
                )
            return Refused(STR, "", event.start_mark, event.end_mark)
        if event.anchor is not None:
            self._refuse(f"the anchor `&{shorten(event.anchor)}` is not allowed", event, "take it away")
            event.anchor = None
        written: str | None = event.tag
        if self._depth >= MAX_DEPTH:
            self._refuse(
                f"nested deeper than {MAX_DEPTH} levels",
                event,
                "take brackets away: no key here holds so many lists in one another",
            )
            raise_all(self.mistakes)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if written is None or (node is not None and written in _FITTING[type(node)]):
            return node
        shown = shorten("!!" + written.removeprefix(CORE) if written.startswith(CORE) else written)
        self._refuse(f"the tag `{shown}` is not allowed", event, "only plain values are read; take it away")
        return Refused(STR, "", event.start_mark, event.end_mark)

    def _peek(self) -> Any:  # noqa: ANN401  # an event; which attributes it has depends on its class
        return self.peek_event()  # type: ignore[attr-defined]

    def _is(self, kind: type[yaml.Event]) -> bool:
        return bool(self.check_event(kind))  # type: ignore[attr-defined]

    def _next(self) -> None:
        self.get_event()  # type: ignore[attr-defined]

    def _refuse(self, problem: str, event: Any, hint: str) -> None:  # noqa: ANN401  # as above
        self.mistakes.append(RequestError(problem, at=locate(self.path, event.start_mark), hint=hint))


class StrictComposer(Strict, Reader, Scanner, Parser):
    """Of PyYAML's own events, which tell best what is wrong with a text."""

    def __init__(self, text: str, path: Path) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Strict.__init__(self, path)


def quick_composer(text: str, path: Path) -> Strict | None:
    """Return what composes a text by libyaml's events, which takes a tenth of the time.

    None where there is no libyaml, and for texts in which it may find something else. Of a tag, which
    the two end elsewhere, it says that it is wrong: it is told by `StrictComposer`.
    """
    if not yaml.__with_libyaml__ or not text.isascii() or _READ_OTHERWISE.search(text):
        return None
    return _quick()(text, path)


@cache
def _quick() -> Callable[[str, Path], Strict]:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]  # noqa: PLC0415  # not everywhere

    class Quick(Strict, CParser):
        def __init__(self, text: str, path: Path) -> None:
            CParser.__init__(self, text)
            Strict.__init__(self, path)

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
            if getattr(self._peek(), "tag", None) is not None:
                raise yaml.YAMLError
            return super().compose_node(parent, index)

    return Quick
