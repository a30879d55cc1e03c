"""Releases with equal values, as ranges of versions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from packaging.version import Version

V = TypeVar("V")


class Series(NamedTuple):
    """Releases from the first to before the end that have one value."""

    first: str
    last: str
    end: str
    """The release that follows the last one."""

    @property
    def specifier(self) -> str:
        """As a range of versions (``>=2.9,<2.15``)."""
        return f">={self.first},<{self.end}"

    @property
    def words(self) -> str:
        """For people (``2.9 to 2.14``)."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def following(series: str) -> str:
    """Return the series after one (``2.15`` → ``2.16``)."""
    *upper, last = series.split(".")
    return ".".join([*upper, str(int(last) + 1)])


def equal_runs(values: Mapping[str, V | None]) -> Iterator[tuple[Series, V]]:
    """Yield neighbouring series (``2.9``, ``2.10``) with equal values; those with None are left out."""
    names = sorted(values, key=Version)
    first = 0
    for index, name in enumerate(names):
        after = names[index + 1] if index + 1 < len(names) else following(name)
        if index + 1 < len(names) and values[after] == values[name]:
            continue
        value = values[name]
        if value is not None:
            yield Series(names[first], name, after), value
        first = index + 1


def newest(series: Mapping[str, object]) -> str:
    """Return the newest series."""
    return max(series, key=Version)
