"""Validators of types, made once in a process."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

T = TypeVar("T")


def validator(kind: type[T]) -> TypeAdapter[T]:
    """Return the validator of a model or an annotated type.

    It takes longer to make than most values take to judge.
    """
    return _made(cast("Hashable", kind))


@cache
def _made(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401  # a type
    return TypeAdapter(kind)
