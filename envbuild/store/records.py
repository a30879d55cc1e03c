"""Records of finished layers: the blob of a key, and its paths. One sealed JSON file each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.store.tree import Tree
from envbuild.system.files import read_small
from envbuild.system.sealing import check_seal

# More than twice as much as a million paths take.
RECORD_LIMIT_BYTES = 256 << 20
RECORD_FORMAT = 3

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PATH = re.compile(r"(?!/)(?:(?!\.{1,2}(?:/|$))[^/\0]+(?:/|$))+(?<!/)")
_ENTRY = re.compile(r"d [0-7]{4}|f [0-7]{4} [0-9a-f]{64}|l [^\0]+|whiteout", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """A finished layer."""

    key: str
    """``sha256:…`` of the plan's layer."""
    name: str
    """The layer's name when it was built, for messages."""
    blob: str
    """``sha256:…`` of the squashfs."""
    size_bytes: int
    """Length of the squashfs."""
    data: str
    tables: str
    """``sha256:…`` of its data and of its tables; see `system.squashfs.Digests`."""
    tree: Tree
    imported: bool = False
    """Whether it comes from a directory of an untrusted account (`layer import --trust`)."""


def hex_of(digest: str) -> str:
    """Return the hexadecimal digits of a sha256 digest; RequestError for any other text."""
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise RequestError(
            f"`{digest}` is not a sha256 digest", hint="write `sha256:` and 64 hexadecimal digits"
        )
    return value


def blob_name(digest: str) -> str:
    """Return the path of a blob in a store; RequestError unless `digest` is a sha256 digest."""
    value = hex_of(digest)
    return f"blobs/sha256/{value[:2]}/{value}"


def record_name(key: str) -> str:
    """Return the path of a layer's record in a store; RequestError unless `key` is a sha256 digest."""
    value = hex_of(key)
    return f"layers/{value[:2]}/{value}.json"


def read_record(path: Path) -> LayerRecord:
    """Read the record of a layer; ValueError if it is damaged or of another format."""
    text = check_seal(read_small(path, limit_bytes=RECORD_LIMIT_BYTES).decode())
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("no record") from error
    if not isinstance(data, dict) or data.get("format") != RECORD_FORMAT:
        raise ValueError("a record of another format")
    try:
        record = LayerRecord(
            key=data["key"],
            name=data["name"],
            blob=data["blob"],
            size_bytes=data["size_bytes"],
            data=data["data"],
            tables=data["tables"],
            tree=Tree(entries=data["tree"]),
            imported=data["imported"],
        )
    except KeyError as error:
        raise ValueError("no record") from error
    entries = record.tree.entries
    digests = (record.key, record.blob, record.data, record.tables)
    if not isinstance(entries, dict) or type(record.imported) is not bool:
        raise ValueError("a record of other types")
    if type(record.size_bytes) is not int or not all(
        isinstance(text, str) for text in (*digests, record.name, *entries.values())
    ):
        raise ValueError("a record of other types")
    if not all(map(_DIGEST.fullmatch, digests)) or not record.name.isprintable():
        raise ValueError("a record with other words than a store writes")
    if not all(map(_PATH.fullmatch, entries)) or not all(map(_ENTRY.fullmatch, entries.values())):
        raise ValueError("a record of paths that no layer holds")
    return record


def record_data(record: LayerRecord) -> dict[str, object]:
    """Return the record of a layer as JSON data."""
    return {
        "format": RECORD_FORMAT,
        "key": record.key,
        "name": record.name,
        "blob": record.blob,
        "size_bytes": record.size_bytes,
        "data": record.data,
        "tables": record.tables,
        "tree": dict(record.tree.entries),
        "imported": record.imported,
    }
