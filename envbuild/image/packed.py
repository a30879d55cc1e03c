"""How layers of OCI images were packed, in a store: what a registry has is not packed again.

scans/packed/ab/<key hex>.json      of `LayerContent.key`; sealed by a digest of its text
"""

from __future__ import annotations

import json
from contextlib import suppress

from envbuild.digests import canonical_json
from envbuild.errors import RequestError
from envbuild.image.oci import OciLayer
from envbuild.store.records import hex_of
from envbuild.store.store import Store
from envbuild.system.files import read_input
from envbuild.system.sealing import check_seal, sealed

_RECORD_BYTES = 4096


def packed_layer(store: Store, key: str) -> OciLayer | None:
    """Return what packing the files with a key gave; None if the store does not know it."""
    with suppress(RequestError, ValueError, KeyError, TypeError):
        text = read_input(store.root / _name(key), limit_bytes=_RECORD_BYTES).decode()
        data = json.loads(check_seal(text))
        return OciLayer(
            digest=str(data["digest"]), content=str(data["content"]), size_bytes=int(data["size_bytes"])
        )
    return None


def record_packed(store: Store, key: str, layer: OciLayer) -> None:
    """Keep what packing the files with a key gave; MachineError: the store cannot be written."""
    data = {"digest": layer.digest, "content": layer.content, "size_bytes": layer.size_bytes}
    store.write(_name(key), sealed(canonical_json(data)))


def _name(key: str) -> str:
    hexadecimal = hex_of(key)
    return f"scans/packed/{hexadecimal[:2]}/{hexadecimal}.json"
