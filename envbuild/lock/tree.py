"""YAML text as a small tree whose nodes know their line and column.

Built from the parser's events, not from a loader's objects: a lock needs no
tags, anchors or aliases, so a file that uses them is refused before anything
is built, and so is one that nests deeper than a lock does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from envbuild.errors import Location, RequestError

MAX_BYTES = 16 * 1024 * 1024
_MAX_DEPTH = 5

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place.

    Attributes
    ----------
    value : str, int, list of Node or dict of str to Node
        A plain number is an int; every other scalar is a str.
    line, column : int
        Counted from 1.
    """

    value: str | int | list[Node] | dict[str, Node]
    line: int
    column: int

    def at(self, path: Path) -> Location:
        """Return the place for a message."""
        return Location(path=path, line=self.line, column=self.column)


def parse(text: bytes, path: Path, hint: str) -> Node:
    """Return the tree of the one document in a YAML text; `hint` is what to do where there is none.

    Raises
    ------
    RequestError
        It is too large, not UTF-8, not YAML, or uses what a lock never holds.
    """
    if len(text) > MAX_BYTES:
        raise RequestError(
            f"this is not a lock file: it is larger than {MAX_BYTES >> 20} MiB",
            at=Location(path=path),
            hint=hint,
        )
    try:
        # Decoded here: given bytes, YAML would also take UTF-16 by its first two bytes.
        events = iter(yaml.parse(text.decode("utf-8"), Loader=_Loader))
        return _Builder(events, path, hint).document()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"this is not UTF-8 text: byte {error.start}", at=Location(path=path), hint=hint
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = Location(path=path, line=mark.line + 1, column=mark.column + 1) if mark else Location(path=path)
        raise RequestError(f"this is not YAML: {error.problem}", at=at, hint=hint) from None
    except yaml.YAMLError:
        raise RequestError(
            "this is not YAML: it holds a character that may not stand in a text",
            at=Location(path=path),
            hint=hint,
        ) from None


class _Builder:
    """Turns events into nodes, one pass, with a bounded depth."""

    def __init__(self, events: Iterator[yaml.Event], path: Path, hint: str) -> None:
        self._events = events
        self._path = path
        self._hint = hint

    def document(self) -> Node:
        self._next()  # the stream's start
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise RequestError(
                "this is not a lock file: it is empty", at=Location(path=self._path), hint=self._hint
            )
        root = self._node(self._next(), 0)
        self._next()  # the document's end
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._refuse(after, "it holds more than one document")
        return root

    def _next(self) -> yaml.Event:
        return next(self._events)

    def _refuse(self, event: yaml.Event, why: str) -> RequestError:
        return RequestError(
            f"this is not a lock file: {why}", at=Location(path=self._path, **_place(event)), hint=self._hint
        )

    def _node(self, event: yaml.Event, depth: int) -> Node:
        if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) or event.anchor is not None:
            raise self._refuse(event, "it uses anchors or aliases")
        if event.tag is not None:
            raise self._refuse(event, f"it uses the tag `{event.tag}`")
        if depth > _MAX_DEPTH:
            raise self._refuse(event, "it is nested too deeply")
        value: str | int | list[Node] | dict[str, Node]
        if isinstance(event, yaml.ScalarEvent):
            # Eighteen digits: more than any file, and no cost to turn into a number.
            plain_number = event.implicit[0] and re.fullmatch(r"0|[1-9][0-9]{0,17}", event.value, re.ASCII)
            value = int(event.value) if plain_number else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(depth)
        else:
            value = self._dict(depth)
        return Node(value, **_place(event))

    def _list(self, depth: int) -> list[Node]:
        found = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            found.append(self._node(event, depth + 1))
        return found

    def _dict(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key.value, str):
                raise self._refuse(event, "a key is not a word")
            if key.value in found:
                raise self._refuse(event, f"the key `{key.value}` stands there twice")
            found[key.value] = self._node(self._next(), depth + 1)
        return found


def _place(event: yaml.Event) -> dict[str, int]:
    mark = event.start_mark
    return (
        {"line": mark.line + 1, "column": mark.column + 1} if mark is not None else {"line": 0, "column": 0}
    )
