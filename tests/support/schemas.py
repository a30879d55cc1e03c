"""Values against the JSON Schemas that envbuild publishes."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from envbuild.workflows.schema import schema_text

if TYPE_CHECKING:
    from jsonschema import Draft7Validator


def plain(value: object) -> Any:
    """Return what YAML holds in JSON's words."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple) else value


def validator(schema: dict[str, Any]) -> Draft7Validator:
    """Return what judges values by a schema, which is checked itself."""
    # Takes two seconds, in each process that collects tests.
    from jsonschema import Draft7Validator

    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def complaints(name: str, value: object) -> list[str]:
    """Return what a published schema refuses of a value."""
    return [error.message for error in _published(name).iter_errors(value)]


@cache
def _published(name: str) -> Draft7Validator:
    return validator(json.loads(schema_text(name)))


def bill_complaint(text: str) -> str | None:
    """Return the reason why a text is not CycloneDX 1.6, by that format's own library; None if it is."""
    # Takes two seconds, in each process that collects tests.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    return None if problem is None else str(problem)
