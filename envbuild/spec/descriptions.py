"""Descriptions of the fields of models: the texts below them in their source.

pydantic would read them when a class is made, in each command; few commands need them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


@cache
def descriptions(model: type) -> Mapping[str, str]:
    """Return the key of each field of a model or dataclass → its description; inherited ones, too."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not inspect.get_annotations(owner):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        for field, text in pairwise(getattr(definition, "body", ())):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                texts[field.target.id] = inspect.cleandoc(text.value.value)
    fields: Mapping[str, FieldInfo] = getattr(model, "__pydantic_fields__", {})
    return {field.alias or name: texts[name] for name, field in fields.items() if name in texts}
