"""JSON Schemas of the files that people write or read."""

from __future__ import annotations

import json

from envbuild.compat.facts import json_schema as facts_schema
from envbuild.lock.schema import lock_schema
from envbuild.spec.schema import MODELS, json_schema

NAMES = (*MODELS, "lock", "facts")


def schema_text(name: str) -> str:
    """Return a JSON Schema as text.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    """
    if name == "lock":
        schema = lock_schema()
    elif name == "facts":
        schema = facts_schema()
    else:
        schema = json_schema(MODELS[name], f"envbuild {name}")
    return json.dumps(schema, indent=2) + "\n"
