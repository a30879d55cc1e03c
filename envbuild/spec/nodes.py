"""YAML text to plain values with the place of each; nothing is guessed, nothing is executed.

Built on PyYAML's scanner and composer. What a plain scalar means is decided
here: YAML 1.1's octal, sexagesimal and date forms stay text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from envbuild.errors import Location, RequestError, raise_all
from envbuild.spec.syntax import explain_syntax

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_TOLD = 50

Loc = tuple[str | int, ...]

_CORE = "tag:yaml.org,2002:"
STR, INT, FLOAT, BOOL, NULL, MAP, SEQ = (
    _CORE + name for name in ("str", "int", "float", "bool", "null", "map", "seq")
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

# Control characters, lone surrogates, and what hides or reorders text on a screen.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML file as plain values, and where each of them stands.

    Attributes
    ----------
    path : Path
        The file, as the user named it.
    value : dict
        Mappings are dict, sequences tuple, scalars str, int, float, bool or None.
    nodes, keys : dict
        Steps from the root (key or index) → the node of the value, of its key.
    refused : set
        Values that `mistakes` speaks of already; they are None in `value`.
    mistakes : list of RequestError
        What was wrong so far.
    """

    path: Path
    value: dict[str, object] = field(default_factory=dict)
    nodes: dict[Loc, yaml.Node] = field(default_factory=dict)
    keys: dict[Loc, yaml.Node] = field(default_factory=dict)
    refused: set[Loc] = field(default_factory=set)
    mistakes: list[RequestError] = field(default_factory=list)

    def at(self, loc: Loc) -> Location:
        """Return the place of a value."""
        return locate(self.path, self.nodes[loc].start_mark)

    def at_key(self, loc: Loc) -> Location:
        """Return the place of a value's key, or of the value where it has none (list entries)."""
        return locate(self.path, self.keys.get(loc, self.nodes[loc]).start_mark)


def locate(path: Path, mark: yaml.Mark) -> Location:
    """Turn PyYAML's mark, counted from 0, into a place."""
    return Location(path=path, line=mark.line + 1, column=mark.column + 1)


def shorten(text: str, limit: int = 60) -> str:
    """Make text from a file fit for a message: one line, no control characters, not long."""
    visible = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text[: limit + 1])
    return visible if len(text) <= limit else visible[:limit] + "…"


def name_of(loc: Loc) -> str:
    """Write steps as people do (``packages.python``); indexes are left to the place."""
    return shorten(".".join(step for step in loc if isinstance(step, str)))


def read_yaml(content: bytes, path: Path) -> Document:
    """Read one YAML mapping.

    Returns
    -------
    Document
        Mistakes that leave the rest readable are in `mistakes`.

    Raises
    ------
    RequestError
        The file is not text, not YAML, empty, or no mapping: there is nothing to go on with.
    """
    text = _decode(content, path)
    composer = _Composer(text, path)
    document = Document(path=path, mistakes=composer.mistakes)
    try:
        root = composer.compose_only()
    except yaml.YAMLError as error:
        document.mistakes.append(explain_syntax(error, path))
    except (ValueError, OverflowError):
        # PyYAML lets chr() and int() of hostile escapes and directives through.
        at = locate(path, composer.get_mark())
        document.mistakes.append(
            RequestError(
                "an escape or a directive here is not valid YAML",
                at=at,
                hint="write the character itself, and leave lines that begin with `%` out",
            )
        )
    else:
        if isinstance(root, yaml.MappingNode):
            document.nodes[()] = root
            document.value.update(_Builder(document).mapping(root, ()))
            return document
        if isinstance(root, _Refused):
            pass
        elif root is None or (root.tag == NULL and not root.value):
            document.mistakes.append(_empty(path))
        else:
            at = locate(path, root.start_mark)
            problem = "the file is not a mapping of keys to values"
            hint = "it begins with lines such as `name: pytorch-mpi`"
            document.mistakes.append(RequestError(problem, at=at, hint=hint))
    finally:
        composer.dispose()
    raise_all(document.mistakes)
    raise AssertionError("a file without a mapping has a mistake")


def _empty(path: Path) -> RequestError:
    return RequestError(
        "the file is empty", at=Location(path=path), hint="docs/reference has an example of each kind of file"
    )


def _decode(content: bytes, path: Path) -> str:
    if len(content) > MAX_BYTES:
        problem = f"the file is too large: {len(content)} bytes, at most {MAX_BYTES} are read"
        raise RequestError(problem, at=Location(path=path), hint="split it, or take out what is not needed")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        at = Location(path=path, line=1, column=1)
        raise RequestError("the file is UTF-16, not UTF-8", at=at, hint="save the file as UTF-8")
    try:
        # The byte order mark that some editors put first says nothing in UTF-8.
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8").removeprefix("\ufeff")
        problem = f"byte 0x{content[error.start]:02x} (offset {error.start}) is not UTF-8"
        raise RequestError(problem, at=_place(path, before), hint="save the file as UTF-8") from None
    bad = list(_FORBIDDEN.finditer(text))
    if bad:
        more = f" (and {len(bad) - 1} more like it)" if len(bad) > 1 else ""
        problem = f"the character {_codepoint(bad[0].group())} may not be in this file{more}"
        hint = "control and invisible characters are refused; delete it"
        raise RequestError(problem, at=_place(path, text[: bad[0].start()]), hint=hint)
    return text


def _codepoint(char: str) -> str:
    return f"U+{ord(char):04X}"


def _place(path: Path, before: str) -> Location:
    """Place of the character that follows `before`; line ends as YAML has them."""
    lines = re.split("\r\n|\r|\n", before)
    return Location(path=path, line=len(lines), column=len(lines[-1]) + 1)


_CONVERT: dict[str, Callable[[str], object]] = {
    STR: str,
    INT: int,
    FLOAT: float,
    BOOL: lambda text: text.lower() in _TRUE,
    NULL: lambda _: None,
}


class _Refused(yaml.ScalarNode):
    """Stands where something was refused, so that nothing more is said of it."""


def scalar_is_text(text: str) -> bool:
    """Return whether a plain scalar stays text, and is not read as a number, a truth or nothing."""
    return _scalar_tag(text) == STR


def _scalar_tag(text: str) -> str:
    """Say what a plain scalar is."""
    lower = text.lower()
    if lower in ("", "~", "null"):
        return NULL
    if lower in _TRUE | _FALSE:
        return BOOL
    if _INT.fullmatch(text):
        return INT
    return FLOAT if _FLOAT.fullmatch(text) and math.isfinite(float(text)) else STR


class _Composer(yaml.SafeLoader):
    """PyYAML's composer without anchors, aliases, foreign tags and deep nesting."""

    def __init__(self, text: str, path: Path) -> None:
        super().__init__(text)
        self.path = path
        self.mistakes: list[RequestError] = []
        self._depth = 0
        self._aliases: set[str] = set()  # told already

    def compose_only(self) -> yaml.Node | None:
        """Compose the only document; None where there is none."""
        self._next()
        if self.check_event(yaml.StreamEndEvent):
            return None
        root: yaml.Node | None = self.compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            self._refuse("a second document begins here", self._peek(), "one file holds one document")
        return root

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:  # noqa: ANN401  # PyYAML's types
        """Say what a node without a tag is."""
        if kind is yaml.ScalarNode:
            return _scalar_tag(value) if implicit[0] else STR
        return MAP if kind is yaml.MappingNode else SEQ

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401  # as above
        """Compose a node, or its stand-in where it is refused."""
        event = self._peek()
        if self.check_event(yaml.AliasEvent):
            self._next()
            if event.anchor not in self._aliases:
                self._aliases.add(event.anchor)
                self._refuse(
                    f"the alias `*{shorten(event.anchor)}` is not allowed", event, "write the value out"
                )
            return _Refused(STR, "", event.start_mark, event.end_mark)
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
        shown = shorten("!!" + written.removeprefix(_CORE) if written.startswith(_CORE) else written)
        self._refuse(f"the tag `{shown}` is not allowed", event, "only plain values are read; take it away")
        return _Refused(STR, "", event.start_mark, event.end_mark)

    def _peek(self) -> Any:  # noqa: ANN401  # an event; which attributes it has depends on its class
        return self.peek_event()  # type: ignore[no-untyped-call]

    def _next(self) -> None:
        self.get_event()  # type: ignore[no-untyped-call]

    def _refuse(self, problem: str, event: Any, hint: str) -> None:  # noqa: ANN401  # as above
        self.mistakes.append(RequestError(problem, at=locate(self.path, event.start_mark), hint=hint))


class _Builder:
    """Builds the plain values of a document and notes their nodes."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key is None:
                continue
            here = (*loc, key)
            if key in result:
                first = self._document.at_key(here)
                problem = f"the key `{shorten(key)}` is given twice"
                self._mistake(problem, key_node, hint=f"it was first given at {first}")
                continue
            self._document.keys[here] = key_node
            result[key] = self._value(value_node, here)
        return result

    def _key(self, node: yaml.Node) -> str | None:
        if isinstance(node, _Refused):
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._mistake("a key must be text, not a list or a mapping", node, hint="write `key: value`")
            return None
        text: str = node.value
        if node.style is None and text == "<<":
            self._mistake("merge keys (`<<`) are not allowed", node, hint="write the keys out")
            return None
        if node.tag != STR:
            what = f"`{shorten(text)}`" if text else "nothing"
            hint = f'write it in quotes: `"{shorten(text)}"`' if text else "write one before the `:`"
            self._mistake(f"a key must be text, found {what}", node, hint=hint)
            return None
        return text if self._clean(node) else None

    def _value(self, node: yaml.Node, loc: Loc) -> object:
        self._document.nodes[loc] = node
        if isinstance(node, _Refused):
            self._document.refused.add(loc)
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._value(item, (*loc, index)) for index, item in enumerate(node.value))
        return self._scalar(node, loc)

    def _scalar(self, node: yaml.Node, loc: Loc) -> object:
        text: str = node.value
        is_blank = node.tag == NULL and not text and node.style is None  # type: ignore[attr-defined]
        if is_blank:
            what = f"`{name_of(loc)}` has no value" if isinstance(loc[-1], str) else "an entry has no value"
            self._mistake(what, node, at=self._document.at_key(loc), hint="give it one, or take it away")
        fits = node.tag == STR or _scalar_tag(text) in (node.tag, INT if node.tag == FLOAT else node.tag)
        if not fits:
            word = node.tag.removeprefix(_CORE)
            self._mistake(
                f"`{shorten(text)}` does not fit the tag `!!{word}`", node, hint="take the tag away"
            )
        if is_blank or not fits or not self._clean(node):
            self._document.refused.add(loc)
            return None
        return _CONVERT[node.tag](text)

    def _clean(self, node: yaml.Node) -> bool:
        bad = _FORBIDDEN.search(node.value)
        if bad:
            self._mistake(
                f"this text holds the character {_codepoint(bad.group())}, which is refused",
                node,
                hint="take it out",
            )
        return bad is None

    def _mistake(self, problem: str, node: yaml.Node, *, hint: str, at: Location | None = None) -> None:
        at = at or locate(self._document.path, node.start_mark)
        self._document.mistakes.append(RequestError(problem, at=at, hint=hint))
