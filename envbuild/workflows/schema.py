"""JSON Schemas of the files that people write or read."""

from __future__ import annotations

import json

from envbuild.lock.text import lock_schema
from envbuild.spec.schema import MODELS, json_schema

NAMES = (*MODELS, "lock")


def schema_text(name: str) -> str:
    """Return a JSON Schema as text.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    """
    schema = lock_schema() if name == "lock" else json_schema(MODELS[name], f"envbuild {name}")
    return json.dumps(schema, indent=2) + "\n"
