"""JSON Schemas of the files that people write or read."""

from __future__ import annotations

import json

from envbuild.lock.text import lock_schema
from envbuild.spec.schema import MODELS, json_schema


def schema_text(kind: str) -> str:
    """Return the JSON Schema of a `SchemaKind` as text."""
    schema = lock_schema() if kind == "lock" else json_schema(MODELS[kind], f"envbuild {kind}")
    return json.dumps(schema, indent=2) + "\n"
