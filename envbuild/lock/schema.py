"""The lock as JSON Schema: what one pin alone must look like.

Whether pins fit each other, and a file its version, `envbuild.lock.text` knows alone.
"""

from __future__ import annotations

import re
from typing import Any

from envbuild.lock import check
from envbuild.lock.model import LOCK_FORMAT, Lock
from envbuild.lock.text import OPTIONAL_TABLES
from envbuild.spec.model import DEBIAN_NAME
from envbuild.spec.schema import json_schema

_PART = check.DEB_PART.pattern.replace("$)", "/)")
# What a field holds is the same in every pin, but for these.
_OWN: dict[tuple[str, str], str] = {
    ("DebPin", "name"): DEBIAN_NAME,
    ("DebPin", "version"): check.DEBIAN_VERSION.pattern,
    ("DebPin", "file"): rf"(?:{_PART}/)*[A-Za-z0-9._+~%:-]*\.deb",
    ("PythonPin", "name"): check.PYTHON_NAME.pattern,
    ("PythonPin", "version"): check.TEXT.pattern,
    ("RootPin", "kind"): check.ROOT_KIND.pattern,
    ("ToolPin", "version"): check.TEXT.pattern,
    ("Lock", "accelerator"): check.TEXT.pattern,
}
_OWN |= {("BuildDebPin", field): text for (pin, field), text in _OWN.items() if pin == "DebPin"}
_COMMON: dict[str, re.Pattern[str]] = {
    "origin": check.ORIGIN,
    "file": check.FILE,
    "sha256": check.SHA256,
    "digest": check.DIGEST,
    "layer": check.LAYER,
    "kind": check.KIND,
}


def lock_schema() -> dict[str, Any]:
    """Return the JSON Schema of a lock file."""
    schema = json_schema(Lock, "envbuild lock")
    for model, table in {"Lock": schema, **schema["definitions"]}.items():
        for name, said in table["properties"].items():
            said.pop("default", None)
            if said.get("type") == "string":
                pattern = _OWN.get((model, name)) or _COMMON.get(name, check.WORD).pattern
                said["pattern"] = f"^(?:{pattern})$"
            elif said.get("type") == "integer":
                said |= {"minimum": 0, "maximum": check.MAX_FILE_BYTES}
        table["required"] = [name for name in table["properties"] if name not in OPTIONAL_TABLES]
    schema["properties"]["format"] |= {"const": LOCK_FORMAT}
    required = schema["definitions"]["PythonPin"]["properties"]["requires"]
    required["items"]["pattern"] = f"^(?:{check.PYTHON_NAME.pattern})$"
    schema["properties"]["system_requests"]["items"]["pattern"] = f"^{DEBIAN_NAME}$"
    return schema
