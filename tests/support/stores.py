"""A store's layers and files, made without building any."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from envbuild.store.records import LayerRecord
from envbuild.store.store import Store

DAY_S = 86_400.0


def key(letter: str) -> str:
    """Return a layer's key that is easy to recognize."""
    return "sha256:" + letter * 64


def publish(store: Store, name: str, key: str | None = None) -> LayerRecord:
    """Put a layer of a few bytes into a store."""
    with store.stage() as stage:
        made = stage / "made"
        made.write_text(f"hsqs {name}")
        key = key or "sha256:" + hashlib.sha256(name.encode()).hexdigest()
        return store.publish(key=key, name=name, squashfs=made, tree={})[0]


def layer(
    store: Store, letter: str, content: bytes | None = None, *, days: float = 1, of: str | None = None
) -> LayerRecord:
    """Publish a layer that was last used so many days ago, under the letter's key or another."""
    with store.stage() as stage:
        (stage / "x").write_bytes(content or f"bytes of {letter}".encode())
        record, _ = store.publish(key=of or key(letter), name=letter, squashfs=stage / "x", tree={})
    aged(store.record_path(record.key), days)
    aged(store.blob_path(record.blob), days)
    return record


def locked_file(store: Store, content: bytes, *, days: float = 1) -> Path:
    """Keep a locked file that was last used so many days ago."""
    digest = hashlib.sha256(content).hexdigest()
    path = store.directory(f"files/sha256/{digest[:2]}/{digest}") / "some.whl"
    path.write_bytes(content)
    path.chmod(0o444)
    aged(path, days)
    return path


def aged(path: Path, days: float) -> None:
    """Set the times of a file back by so many days."""
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def flip(path: Path) -> None:
    """Change one bit of a file, and leave its length."""
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage(store: Store, key: str) -> None:
    """Change one bit of a layer's blob."""
    record = store.get(key)
    assert record is not None
    flip(store.blob_path(record.blob))
