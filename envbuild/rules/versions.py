"""Versions and ranges of them, by the scheme of the fact that they belong to. Pure."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

Scheme = Literal["pep440", "vendor", "branch", "debian", "count"]
"""How versions of a fact are compared.

``pep440``: as Python's packages, and a development version is older than its release: ``0.9.4.dev0``, which
still asks for what 0.9.3 does, is below 0.9.4. Whether a pre-release is at least its release is undecided:
``2.4.0a0+nv24.5`` may have what 2.4 has. ``vendor``: by the numbers at their beginning; ``3.4a2`` and
``3.4amzn1`` are 3.4. ``branch``: the same, and a version that says less than the limit is undecided: driver
``580`` may be 580.65.06, and CUDA ``12.4`` may be 12.4.1. ``debian``: as dpkg compares them.

``count``: a number of things, such as bytes.

One number alone says less than any release: ``2`` may be 2.4. A count says all.
"""

MAX_VERSION = 256  # characters; Python makes no numbers of thousands of digits
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>) *([A-Za-z0-9][A-Za-z0-9.+~:_-]*(?:\.\*)?)")
# Most ranges: numbers alone, which every scheme compares.
_PLAIN = re.compile(r"(?:(?:^|,)(?:>=|<=|==|!=|<|>)[0-9]+(?:\.[0-9]+)*)+")
# Behind an epoch (`1:4.1.4`) and one letter.
_NUMBERS = re.compile(r"(?:[0-9]+:)?[A-Za-z]?([0-9]+(?:\.[0-9]+)*)")
# Signs and words of ranges and lists: `<580`, `535, 580`, `535/580`, `2.8 or 2.9`, `2.x`. A kernel's
# `5.14.0-503.el9.x86_64` is one version.
_SEVERAL = re.compile(r"[<>=^*,;|&]|[0-9]/[0-9]|\s(?:-|to|or|and)\s|\.[xX](?![0-9A-Za-z])")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def range_problem(text: str, scheme: Scheme) -> str:
    """Return why a text is not a range of versions of a scheme, such as ``>=12,<13``; empty if it is one."""
    if len(text) > MAX_VERSION:
        return f"it is longer than {MAX_VERSION} characters"
    if _PLAIN.fullmatch(text):
        return ""
    clauses = [_CLAUSE.fullmatch(clause.strip()) for clause in text.split(",")]
    example = f"`{text}` is not a range of versions, such as `>=12,<13`, `==12.*` or `!=2.1.0`"
    if not all(clauses):
        return example
    if scheme == "pep440":
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            return example
    limits = [clause[2] for clause in clauses if clause]
    if scheme in ("vendor", "branch", "count") and not all(_numbers(limit) for limit in limits):
        return example
    return "" if scheme != "debian" or not any(".*" in limit for limit in limits) else example


def is_version(text: str, scheme: Scheme) -> bool:
    """Return whether a text is a version that can be compared."""
    if not text or len(text) > MAX_VERSION:
        return False
    if scheme == "pep440":
        return _python_version(text) is not None
    return scheme == "debian" or bool(_numbers_of_one(text))


@lru_cache(maxsize=1 << 16)
def in_range(version: str, text: str, scheme: Scheme) -> bool | None:
    """Return whether a version is in a range; None if that is undecided, or it cannot be compared."""
    if len(version) > MAX_VERSION:
        return None
    if scheme == "pep440":
        known = _python_version(version)
        outcomes = [None if known is None else _contains(clause, known) for clause in SpecifierSet(text)]
    else:
        outcomes = [_meets(version, operation, limit, scheme) for operation, limit in _clauses(text)]
    return False if False in outcomes else None if None in outcomes else True


def _clauses(text: str) -> Iterator[tuple[str, str]]:
    matches = (_CLAUSE.fullmatch(clause.strip()) for clause in text.split(","))
    return ((match[1], match[2]) for match in matches if match)


def _contains(clause: Specifier, version: Version) -> bool | None:
    """Return whether a clause holds; `<0.9.4` also of ``0.9.4.dev0``, which PEP 440 leaves out."""
    limit = Version(clause.version.removesuffix(".*"))
    if clause.operator == "<" and version.is_devrelease and version.pre is None:
        return version < limit
    if len(version.release) == 1 and version.pre is None and version.epoch == limit.epoch:
        is_series = clause.version.endswith(".*")
        if _may_be_more(version.release, limit.release, clause.operator, is_series=is_series):
            return None
    is_before_limit = version.pre is not None and limit.pre is None and version < limit
    if clause.operator == ">=" and is_before_limit and Version(version.base_version) == limit:
        return None
    return clause.contains(version, prereleases=True)


def _may_be_more(known: tuple[int, ...], bound: tuple[int, ...], operation: str, *, is_series: bool) -> bool:
    """Return whether a version to which numbers may be added can both meet a limit and miss it."""
    size = len(known)
    if bound[:size] != known:
        return False
    if is_series:
        return size < len(bound)
    return operation not in (">=", "<") or any(bound[size:])


def _python_version(text: str) -> Version | None:
    """Return a version of Python's packages; of a vendor's own form the leading numbers."""
    try:
        return Version(text)
    except InvalidVersion:
        numbers = _numbers_of_one(text)
        return Version(".".join(map(str, numbers))) if numbers else None


def _meets(version: str, operation: str, limit: str, scheme: Scheme) -> bool | None:
    if scheme == "debian":
        return _COMPARE[operation](_debian_key(version), _debian_key(limit))
    known, bound = _numbers_of_one(version), _numbers(limit)
    if not known:
        return None
    is_series = limit.endswith(".*")
    one_number = len(known) == 1 and scheme != "count"
    says_less = one_number or (scheme == "branch" and len(known) < len(bound))
    if says_less and _may_be_more(known, bound, operation, is_series=is_series):
        return None
    if is_series:
        return _COMPARE[operation](known[: len(bound)], bound)
    size = max(len(known), len(bound))
    padded = [(*numbers, *[0] * (size - len(numbers))) for numbers in (known, bound)]
    return _COMPARE[operation](*padded)


def _numbers_of_one(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; none of a range or list, which decides nothing."""
    return () if _SEVERAL.search(version) else _numbers(version)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version (``v2.19.3``, ``R580``, ``1:4.1.4``)."""
    match = _NUMBERS.match(text)
    return tuple(int(number) for number in match[1].split(".")) if match else ()


def _debian_key(version: str) -> tuple[Any, ...]:
    """Return what sorts as dpkg sorts versions (deb-version(7)): epoch, upstream version, revision."""
    epoch, colon, rest = version.partition(":")
    upstream, dash, revision = (rest if colon else version).rpartition("-")
    return (
        int(epoch) if colon and epoch.isascii() and epoch.isdigit() else 0,
        _debian_part(upstream if dash else revision),
        _debian_part(revision if dash else ""),
    )


def _debian_part(text: str) -> tuple[Any, ...]:
    """Return alternating texts and numbers; a tilde sorts before the end, and letters before other signs."""
    key: list[Any] = []
    for word, number in re.findall(r"([^0-9]*)([0-9]*)", text):
        key += [(*(_debian_order(char) for char in word), 0), int(number or 0)]
    return tuple(itertools.chain(key, [(0,), 0]))


def _debian_order(char: str) -> int:
    return -1 if char == "~" else ord(char) if char.isalpha() else ord(char) + 256
