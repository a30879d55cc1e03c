"""YAML text to plain values with the place of each; nothing is guessed, nothing is executed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from envbuild.errors import EnvbuildError, Location, RequestError, raise_all
from envbuild.spec.composing import (
    CORE,
    FLOAT,
    INT,
    NULL,
    STR,
    Refused,
    StrictComposer,
    locate,
    quick_composer,
    scalar_tag,
    scalar_value,
    shorten,
)
from envbuild.spec.syntax import explain_syntax

MAX_BYTES = 1 << 20
MAX_TOLD = 50

Loc = tuple[str | int, ...]

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
    quick = _read_quickly(text, path)
    if quick is not None:
        return quick
    composer = StrictComposer(text, path)
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
        if isinstance(root, Refused):
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


def _read_quickly(text: str, path: Path) -> Document | None:
    """Read a text that is all right by libyaml's events; None for any other: PyYAML's tell what is wrong."""
    composer = quick_composer(text, path)
    if composer is None:
        return None
    document = Document(path=path, mistakes=composer.mistakes)
    try:
        root = composer.compose_only()
        if not isinstance(root, yaml.MappingNode):
            return None
        document.nodes[()] = root
        document.value.update(_Builder(document).mapping(root, ()))
    except (yaml.YAMLError, ValueError, OverflowError, EnvbuildError):
        return None
    return None if document.mistakes else document


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
        if isinstance(node, Refused):
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._mistake("a key must be text, not a list or a mapping", node, hint="write `key: value`")
            return None
        text: str = node.value
        if not node.style and text == "<<":
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
        if isinstance(node, Refused):
            self._document.refused.add(loc)
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._value(item, (*loc, index)) for index, item in enumerate(node.value))
        return self._scalar(node, loc)

    def _scalar(self, node: yaml.Node, loc: Loc) -> object:
        text: str = node.value
        is_blank = node.tag == NULL and not text and not node.style  # type: ignore[attr-defined]
        if is_blank:
            what = f"`{name_of(loc)}` has no value" if isinstance(loc[-1], str) else "an entry has no value"
            self._mistake(what, node, at=self._document.at_key(loc), hint="give it one, or take it away")
        fits = node.tag == STR or scalar_tag(text) in (node.tag, INT if node.tag == FLOAT else node.tag)
        if not fits:
            word = node.tag.removeprefix(CORE)
            self._mistake(
                f"`{shorten(text)}` does not fit the tag `!!{word}`", node, hint="take the tag away"
            )
        if is_blank or not fits or not self._clean(node):
            self._document.refused.add(loc)
            return None
        return scalar_value(node.tag, text)

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
