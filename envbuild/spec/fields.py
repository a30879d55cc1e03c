"""Fields that need more than a pattern: versions, distributions, addresses, formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from envbuild.formats import check_format
from envbuild.spec.secrets import without_secrets
from envbuild.spec.wheel_names import wheel_name_problem

FORMAT = 1
NO_CREDENTIALS = "an address may not hold a user or password; put them in ~/.netrc"


@dataclass(frozen=True)
class Checked(AfterValidator):
    """A check of a value, and the part of it that JSON Schema can express."""

    keywords: Mapping[str, object] = field(hash=False)  # an annotation has to be hashable
    """JSON Schema's keywords, which replace those of an inner check. They may allow more than the check,
    never less."""
    description: str = ""
    """The expected value in words, for the reference and for editors (`patternErrorMessage`)."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON Schema of what is checked."""
        message = {"patternErrorMessage": f"expected {self.description}"} if self.description else {}
        return {**handler(schema), **self.keywords, **message}


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
    problem = f"`{without_secrets(value)}` is not an address, such as `https://mirror.example.org/debian`"
    try:
        parts = urlsplit(value)
        nameless = parts.port is not None and not parts.hostname
    except ValueError:
        raise ValueError(problem) from None
    if "@" in parts.netloc:
        raise ValueError(NO_CREDENTIALS)
    if parts.scheme not in ("https", "http", "file") or not (parts.netloc or parts.path.startswith("/")):
        raise ValueError(problem)
    if nameless or not value.isprintable() or " " in value:
        raise ValueError(problem)
    return value


def wheel_location(value: str) -> str:
    """Return a relative path or an http address of a wheel unchanged; ValueError if it is neither."""
    shown = without_secrets(value)
    if problem := wheel_name_problem(unquote(value.rpartition("/")[2])):
        raise ValueError(f"`{shown}` does not name a wheel: {problem}")
    if "://" not in value:
        return relative_path(value)
    if value.partition("://")[0].lower() not in ("https", "http"):
        raise ValueError(f"`{shown}` is neither a relative path nor an address of the web")
    return _address(value)


def repository_address(value: str) -> str:
    """Return an address of a git repository unchanged; ValueError if it is not one."""
    shown = without_secrets(value)
    problem = f"`{shown}` is not an address of a repository, such as `https://example.org/group/tool.git`"
    if not re.fullmatch(r"(?:https?|ssh|file)://[^\s?#]+", value):
        raise ValueError(problem)
    parts = urlsplit(value)
    try:
        parts.port  # noqa: B018  # a password with a slash looks like a port
    except ValueError:
        raise ValueError(problem) from None
    if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
        raise ValueError("an address may not hold a user or password; git's credential helpers know them")
    return value


def relative_path(value: str) -> str:
    """Return a relative path unchanged; ValueError if it is absolute, or contains ``.``, ``..`` or ``//``."""
    if value.startswith("/") or any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError(f"`{value}` is not a relative path below the file that names it")
    return value


def _wheel_location(value: str) -> str:
    return value if value.startswith("/") and value.isprintable() else _address(value)


def _format(value: int) -> int:
    check_format(value, FORMAT)
    return value


_VERSION_PATTERN = (
    r"^[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?"
    r"(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?$"
)
_SCHEME = "(?:[Hh][Tt][Tt][Pp][Ss]?|[Ff][Ii][Ll][Ee]):"

ProvenVersion = Annotated[
    str,
    Checked(
        _proven_version,
        {"pattern": _VERSION_PATTERN},
        "a version in its normal form (PEP 440), such as `2.13.0`",
    ),
]
Distribution = Annotated[
    str,
    Checked(
        _distribution,
        {"pattern": "^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$"},
        "a name of a Python distribution",
    ),
]
Address = Annotated[
    str,
    Checked(
        _address,
        {"pattern": rf"^{_SCHEME}/[^ ]*$"},
        "an address (https, http or file) without user and password",
    ),
]
WheelPlace = Annotated[
    str,
    Checked(
        _wheel_location,
        {"pattern": rf"^(?:/|{_SCHEME}/[^ ]*$)"},
        "an absolute path, or an address (https, http or file) without user and password",
    ),
]
Format = Annotated[int, Checked(_format, {"const": FORMAT})]
