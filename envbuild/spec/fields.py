"""Fields that need more than a pattern: versions, distributions, addresses, formats."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator

FORMAT = 1


def without_secrets(text: str) -> str:
    """Return a text with what may be a password or token in its addresses left out."""
    # Up to the last `@` of a word: a password may hold `/`, `:` and `@` as it likes.
    return re.sub(r"[?#]\S*", "…", re.sub(r":\S*@", ":…@", text))


def _proven_version(value: str) -> str:
    try:
        parsed = Version(value)
    except InvalidVersion:
        parsed = None
    # Only the canonical spelling: it becomes part of requirements and of file names.
    if parsed is None or str(parsed) != value or parsed.epoch:
        raise ValueError(f"`{value}` is not a version in its normal form (PEP 440), such as `2.13.0`")
    return value


def _distribution(value: str) -> str:
    try:
        return str(canonicalize_name(value, validate=True))
    except InvalidName:
        raise ValueError(f"`{value}` is not a name of a Python distribution") from None


def _address(value: str) -> str:
    problem = f"`{value}` is not an address, such as `https://mirror.example.org/debian`"
    try:
        parts = urlsplit(value)
    except ValueError:
        raise ValueError(problem) from None
    if "@" in parts.netloc:
        raise ValueError("an address may not hold a user or password; they belong into ~/.netrc")
    if parts.scheme not in ("https", "http", "file") or not (parts.netloc or parts.path.startswith("/")):
        raise ValueError(problem)
    if not value.isprintable() or " " in value:
        raise ValueError(problem)
    return value


def _wheel_place(value: str) -> str:
    return value if value.startswith("/") and value.isprintable() else _address(value)


def _format(value: int) -> int:
    if value != FORMAT:
        raise ValueError(f"`{value}` is a format that this version does not know; it knows {FORMAT}")
    return value


ProvenVersion = Annotated[str, AfterValidator(_proven_version)]
Distribution = Annotated[str, AfterValidator(_distribution)]
Address = Annotated[str, AfterValidator(_address)]
WheelPlace = Annotated[str, AfterValidator(_wheel_place)]
Format = Annotated[int, AfterValidator(_format)]
