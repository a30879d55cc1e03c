"""How layers of OCI images were packed, in a store: what a registry has is not packed again.

scans/packed/ab/<key hex>.json      of `LayerContent.key`; sealed by a digest of its text
"""

from __future__ import annotations

import json
from dataclasses import asdict

from envbuild.digests import canonical_json
from envbuild.image.oci import OciLayer
from envbuild.store.records import hex_of
from envbuild.store.store import Store

_RECORD_BYTES = 4096


def packed_layer(store: Store, key: str) -> OciLayer | None:
    """Return what packing the files with a key gave; None if the store does not know it."""
    text = store.read_sealed(_name(key), limit_bytes=_RECORD_BYTES)
    if text is None:
        return None
    data = json.loads(text)
    return OciLayer(digest=data["digest"], content=data["content"], size_bytes=data["size_bytes"])


def record_packed(store: Store, key: str, layer: OciLayer) -> None:
    """Keep what packing the files with a key gave; MachineError: the store cannot be written."""
    store.write_sealed(_name(key), canonical_json(asdict(layer)))


def _name(key: str) -> str:
    hexadecimal = hex_of(key)
    return f"scans/packed/{hexadecimal[:2]}/{hexadecimal}.json"
