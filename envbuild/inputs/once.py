"""Reads each input of a run once, however many specs name it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadOnce:
    """Recipes, base images, sites and tools, as a run read them first; errors are not kept.

    Threads may read the same input at a time; all get equal values.
    """

    _values: dict[Hashable, object] = field(default_factory=dict)

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the value of a key, which names the function that `read` calls and its arguments."""
        if key not in self._values:
            self._values[key] = read()
        return cast("T", self._values[key])
