"""JSON Schemas of the files that people write or read."""

from __future__ import annotations

import json

from envbuild.bench.result import BenchResult
from envbuild.lock.text import lock_schema
from envbuild.rules.knowledge import KnowledgeFile
from envbuild.spec.schema import MODELS, json_schema


def schema_text(kind: str) -> str:
    """Return the JSON Schema of a `SchemaKind` as text."""
    if kind == "lock":
        schema = lock_schema()
    else:
        others = {"knowledge": KnowledgeFile, "bench": BenchResult}
        model = others.get(kind) or MODELS[kind]
        schema = json_schema(model, f"envbuild {kind}")
    return json.dumps(schema, indent=2) + "\n"
