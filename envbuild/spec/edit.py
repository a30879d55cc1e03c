"""Adds and removes entries in the text of a spec; its comments, order and style stay. Pure.

PyYAML's nodes say where each value begins and ends; whatever is edited, the new text is read again and
compared with what was to come of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from envbuild.spec.yamlfile import scalar_is_text

Steps = tuple[str | int, ...]
_Node = Any  # of PyYAML
# No mark of a flow list and no comment is among these; a `>` or `=` inside of a word means nothing.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+<>=!~-]*")


class CannotEdit(Exception):
    """The text is written in a way that only people can change."""


@dataclass(frozen=True, slots=True)
class _Span:
    """An entry of a list, or a key with its value: from its first to behind its last character."""

    begin: int
    end: int


def scalar(text: str) -> str:
    """Return a text as a YAML scalar, in quotes if it needs them."""
    # Other tools read YAML 1.1, where `00` and `2020-01-01` are no text.
    if _PLAIN.fullmatch(text) and scalar_is_text(text) and isinstance(yaml.safe_load(text), str):
        return text
    return "'" + text.replace("'", "''") + "'"


def text_at(text: str, steps: Steps) -> str:
    """Return the text of a scalar."""
    value: str = _at(_compose(text), steps).value
    return value


def insert(text: str, key: Sequence[str], entry: str) -> str:
    """Return the text of a spec with an entry at the end of a list, which is made if it is not there.

    CannotEdit: nothing can be inserted there.
    """
    root = _compose(text)
    node = _at(root, key)
    if node is not None:
        edited = _insert_item(text, node, scalar(entry))
    else:
        depth = max(depth for depth in range(len(key)) if _at(root, key[:depth]) is not None)
        value = f"[{scalar(entry)}]"
        for name in reversed(key[depth + 1 :]):
            value = f"{{{name}: {value}}}"
        edited = _insert_item(text, _at(root, key[:depth]), f"{key[depth]}: {value}")
    expected = _plain(text)
    container = expected
    for name in key[:-1]:
        container = container.setdefault(name, {})
    container.setdefault(key[-1], []).append(entry)
    return _checked(edited, expected)


def insert_key(text: str, key: str, value: str) -> str:
    """Return the text of a spec with one more key, whose value is text; raises as `insert`."""
    edited = _insert_item(text, _compose(text), f"{key}: {scalar(value)}")
    return _checked(edited, {**_plain(text), key: value})


def replace(text: str, steps: Steps, value: str) -> str:
    """Return the text of a spec with another text in place of one; CannotEdit if that is impossible."""
    node = _at(_compose(text), steps)
    edited = text[: node.start_mark.index] + scalar(value) + text[node.end_mark.index :]
    expected = _plain(text)
    _container(expected, steps)[steps[-1]] = value
    return _checked(edited, expected)


def remove(text: str, steps: Steps) -> str:
    """Return the text of a spec without an entry or key; a list or table that would be empty goes with it.

    CannotEdit: it cannot be removed.
    """
    root = _compose(text)
    parent = _at(root, steps[:-1])
    while len(parent.value) == 1 and len(steps) > 1:
        steps = steps[:-1]
        parent = _at(root, steps[:-1])
    spans = _spans(parent)
    at = _index(parent, steps[-1])
    span = spans[at]
    if not parent.flow_style or _is_alone(text, span):
        edited = text[: _line_begin(text, span.begin)] + text[_line_end(text, span.end) :]
    elif at + 1 < len(spans):
        edited = text[: span.begin] + text[spans[at + 1].begin :]
    else:
        edited = text[: spans[at - 1].end] + text[span.end :]
    expected = _plain(text)
    del _container(expected, steps)[steps[-1]]
    return _checked(edited, expected)


def _compose(text: str) -> _Node:
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _plain(text: str) -> Any:  # noqa: ANN401  # YAML
    """Return the values of a text, all scalars as text: to compare, not to use."""
    return _values(_compose(text))


def _values(node: _Node) -> Any:  # noqa: ANN401  # YAML
    if isinstance(node, yaml.MappingNode):
        return {key.value: _values(value) for key, value in node.value}
    return [_values(item) for item in node.value] if isinstance(node, yaml.SequenceNode) else node.value


def _checked(edited: str, expected: object) -> str:
    try:
        if _plain(edited) == expected:
            return edited
    except yaml.YAMLError:
        pass
    raise CannotEdit


def _container(values: Any, steps: Steps) -> Any:  # noqa: ANN401  # YAML
    for step in steps[:-1]:
        values = values[step]
    return values


def _at(node: _Node, steps: Sequence[str | int]) -> _Node:
    """Return the node of a value; None if there is none."""
    for step in steps:
        index = _index(node, step)
        if index < 0:
            return None
        node = node.value[index][1] if isinstance(node, yaml.MappingNode) else node.value[index]
    return node


def _index(node: _Node, step: str | int) -> int:
    """Return the number of an entry or key; -1 if there is no such key."""
    if isinstance(step, int):
        return step
    return next((index for index, (key, _) in enumerate(node.value) if key.value == step), -1)


def _spans(node: _Node) -> list[_Span]:
    """Return where the entries of a list, or the keys of a mapping with their values, begin and end."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else [(item, item) for item in node.value]
    return [_Span(first.start_mark.index, _end(last)) for first, last in pairs]


def _end(node: _Node) -> int:
    """Return where a value ends; PyYAML counts comments that follow to a list or mapping without brackets."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    index: int = node.end_mark.index
    return index


def _insert_item(text: str, node: _Node, item: str) -> str:
    """Insert text as the last entry of a list or mapping."""
    if not isinstance(node, yaml.CollectionNode):
        raise CannotEdit
    spans = _spans(node)
    if not spans:
        end = node.end_mark.index - 1
        return text[:end] + item + text[end:]
    last = spans[-1]
    if node.flow_style:
        return f"{text[: last.end]}, {item}{text[last.end :]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    before = text[_line_begin(text, last.begin) : last.begin]
    end = _line_end(text, last.end)
    gap = "" if text[:end].endswith("\n") else newline
    return f"{text[:end]}{gap}{before}{item}{newline}{text[end:]}"


def _is_alone(text: str, span: _Span) -> bool:
    """Return whether an entry has its lines for itself."""
    before = text[_line_begin(text, span.begin) : span.begin]
    behind = text[span.end : _line_end(text, span.end)]
    return not before.strip() and re.fullmatch(r"\s*,?\s*(?:#.*)?\s*", behind) is not None


def _line_begin(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    """Return the beginning of the line that follows a place."""
    return text.find("\n", index) + 1 or len(text)
