"""Version tables: rows of data with sources and dates, and how versions and GPU code are compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field

from envbuild.spec.load import load
from envbuild.spec.model import Model, Text, full_match

_COMPARISONS = tuple("<>=!~")


class Row(Model):
    """A row: for each column a text, or a range of versions that begins with its comparison."""

    match: Annotated[tuple[Text, ...], Field(min_length=1)]
    values: tuple[Text, ...]

    def matches(self, keys: Sequence[str]) -> bool:
        """Whether every key matches its column."""
        return len(keys) == len(self.match) and all(map(_matches, self.match, keys))


class Table(Model):
    """Rows in the order in which they are tried; if none matches, the answer is unknown."""

    summary: Text
    source: Annotated[tuple[Text, ...], Field(min_length=1)]
    seen: Annotated[str, full_match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|unknown", "a date, such as `2026-11-20`")]
    columns: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Meanings of the entries of `Row.match`."""
    rows: tuple[Row, ...]


class Tables(Model):
    """The file of tables."""

    tables: dict[Text, Table]


@cache
def tables() -> Mapping[str, Table]:
    """Return the tables of this program by name."""
    file = resources.files("envbuild.rules") / "tables.yaml"
    return load(Tables, file.read_bytes(), Path("tables.yaml")).value.tables


def look_up(table: str, *keys: str) -> tuple[str, ...] | None:
    """Return the values of the first row that matches; None if there is none, or a key is empty."""
    if not all(keys):
        return None
    return next((row.values for row in tables()[table].rows if row.matches(keys)), None)


def version_of(text: str) -> Version | None:
    """Return a version that can be compared (PEP 440), or None.

    Of a vendor's version (``1.22.0amzn4.0``), the leading numbers count.
    """
    try:
        return Version(text)
    except InvalidVersion:
        numbers = re.match(r"[0-9]+(\.[0-9]+)*", text)
        return Version(numbers[0]) if numbers else None


def at_least(version: str, limit: str) -> bool | None:
    """Return whether a version is not below a limit; None for versions that cannot be compared."""
    known, floor = version_of(version), version_of(limit)
    return None if known is None or floor is None else known >= floor


def in_range(version: str, specifier: str) -> bool | None:
    """Return whether a version is in a range (``>=5,<6``); None if it cannot be compared."""
    known = version_of(version)
    return None if known is None else SpecifierSet(specifier).contains(known, prereleases=True)


def _matches(pattern: str, key: str) -> bool:
    return pattern == key if pattern[:1] not in _COMPARISONS else in_range(key, pattern) is True


def run_code(gpus: Sequence[str], code: Sequence[str]) -> bool | None:
    """Return whether every GPU runs some of the code; None if only PTX is left, which the driver compiles.

    A CUDA binary runs on GPUs of its major version and the same or a later minor one; a ROCm binary runs on
    its own target only.
    """
    served = [_runs(gpu, code) for gpu in gpus]
    return False if False in served else None if None in served or not served else True


def _runs(gpu: str, code: Sequence[str]) -> bool | None:
    if gpu in code:
        return True
    capability = _compute_capability(gpu)
    if capability is None:
        # Code for a family of AMD's (`gfx9-4-generic`) runs on GPUs that its name does not list.
        amd = gpu.startswith("gfx") and not any(target.endswith("-generic") for target in code)
        return False if amd else None
    # `sm_90a` is for that very GPU, which sites call `sm_90`; `sm_100f` for it and its family's later ones.
    if f"{gpu}a" in code:
        return True
    binaries = [_compute_capability(target) for target in code if re.fullmatch(r"sm_[0-9]+f?", target)]
    if any(has is not None and has[0] == capability[0] and has[1] <= capability[1] for has in binaries):
        return True
    ptx = [_compute_capability(target) for target in code if re.fullmatch(r"compute_[0-9]+", target)]
    return None if any(has is not None and has <= capability for has in ptx) else False


def _compute_capability(name: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(?:sm|compute)_([0-9]+)([0-9])[af]?", name)
    return (int(match[1]), int(match[2])) if match else None
