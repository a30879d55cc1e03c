"""Values against the JSON Schemas that envbuild publishes."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft7Validator

from envbuild.workflows.schema import schema_text


def plain(value: object) -> Any:
    """Return what YAML holds in JSON's words."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple) else value


def complaints(name: str, value: object) -> list[str]:
    """Return what a published schema refuses of a value."""
    schema = json.loads(schema_text(name))
    return [error.message for error in Draft7Validator(schema).iter_errors(value)]
