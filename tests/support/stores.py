"""A store's layers, made without building any."""

from __future__ import annotations

import hashlib

from envbuild.store.store import LayerRecord, Store
from envbuild.store.tree import Tree


def publish(store: Store, name: str, key: str | None = None) -> LayerRecord:
    """Put a layer of a few bytes into a store."""
    with store.stage() as stage:
        made = stage / "made"
        made.write_text(f"hsqs {name}")
        key = key or "sha256:" + hashlib.sha256(name.encode()).hexdigest()
        return store.publish(key=key, name=name, squashfs=made, tree=Tree(entries={}))[0]


def flip(store: Store, key: str) -> None:
    """Change a layer's bytes, and not how many there are."""
    record = store.get(key)
    assert record is not None
    blob = store.blob_path(record.blob)
    blob.chmod(0o644)
    blob.write_text(blob.read_text().swapcase())
