"""What the docstrings of models say of their keys, for schemas, references and messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache


@cache
def described(model: type) -> Mapping[str, str]:
    """Return what the docstrings of a class and its bases say of each attribute.

    Returns
    -------
    dict
        Attribute → the text of its entry under "Attributes" in one line, as Markdown.
    """
    told: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        told.update(_attributes(inspect.cleandoc(cls.__doc__ or "")))
    return told


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    _, _, section = text.partition("\nAttributes\n----------\n")
    section = re.split(r"\n\n[A-Z][a-z]+\n-+\n", section)[0]
    # An entry begins without indentation: `name, other : type`.
    for entry in re.split(r"\n(?=\S)", section):
        head, _, body = entry.partition("\n")
        names = head.partition(" : ")[0]
        words = " ".join(body.split()).replace("``", "`")
        yield from ((name, words) for name in names.split(", ") if words)
