"""Digests as envbuild writes them, and the JSON that they are made of."""

from __future__ import annotations

import hashlib
import json


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256_of(content: bytes | str) -> str:
    """Return ``sha256:…`` of bytes, or of a text in UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    return "sha256:" + hashlib.sha256(data).hexdigest()
