"""Where OCI images were pushed, in a store: Kubernetes names them by the digest that a registry gave.

scans/pushed/ab/<digest hex>.json      of a manifest of an image; sealed by a digest of its text
"""

from __future__ import annotations

import json

from envbuild.digests import canonical_json
from envbuild.store.records import hex_of
from envbuild.store.store import Store

_RECORD_BYTES = 4096


def pushed_reference(store: Store, digest: str) -> str:
    """Return ``HOST/NAME@sha256:…`` of the last push of an image with a digest; empty for none."""
    text = store.read_sealed(_name(digest), limit_bytes=_RECORD_BYTES)
    return str(json.loads(text)["reference"]) if text is not None else ""


def record_pushed(store: Store, digest: str, reference: str) -> None:
    """Keep where an image with a digest was pushed; MachineError: the store cannot be written."""
    store.write_sealed(_name(digest), canonical_json({"reference": reference}))


def _name(digest: str) -> str:
    hexadecimal = hex_of(digest)
    return f"scans/pushed/{hexadecimal[:2]}/{hexadecimal}.json"
