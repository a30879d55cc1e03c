"""Records of finished layers: the blob of a key, and its paths. One sealed JSON file each."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import (
    PlainValidator,
    StrictBool,
    StrictInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from envbuild.digests import canonical_json
from envbuild.errors import RequestError
from envbuild.formats import check_format
from envbuild.store.tree import Tree
from envbuild.system.files import read_small
from envbuild.system.sealing import check_seal, sealed
from envbuild.system.squashfs import Digests

# More than twice as much as a million paths take.
RECORD_LIMIT_BYTES = 256 << 20
RECORD_FORMAT = 4

_Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._:+-]*$")]
_PATH = re.compile(r"(?!/)(?:(?!\.{1,2}(?:/|$))[^/\0]+(?:/|$))+(?<!/)")
_ENTRY = re.compile(r"d [0-7]{4}|f [0-7]{4} [0-9a-f]{64}|l [^\0]+|whiteout", re.DOTALL)


def _tree(value: object) -> Tree:
    """Check the paths of a record; pydantic's own texts hold no path that is not UTF-8."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("not a mapping of texts")
    if not all(map(_PATH.fullmatch, value)) or not all(map(_ENTRY.fullmatch, value.values())):
        raise ValueError("paths that no layer holds")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """A finished layer."""

    key: _Digest
    """``sha256:…`` of the plan's layer."""
    name: _Name
    """The layer's name when it was built, for messages."""
    blob: _Digest
    """``sha256:…`` of the squashfs."""
    size_bytes: StrictInt
    """Length of the squashfs."""
    data: _Digest
    tables: _Digest
    """``sha256:…`` of its data and of its tables; see `system.squashfs.Digests`."""
    tree: Annotated[Tree, PlainValidator(_tree)]
    imported: StrictBool
    """Whether it comes from a directory of an untrusted account (`layer import --trust`)."""

    @property
    def digests(self) -> Digests:
        """The digests of the squashfs."""
        return Digests(whole=self.blob, data=self.data, tables=self.tables)


_RECORD = TypeAdapter(LayerRecord)


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
    """Read the record of a layer; FormatError if it has another format, ValueError if it is damaged."""
    return parse_record(read_small(path, limit_bytes=RECORD_LIMIT_BYTES))


def parse_record(content: bytes) -> LayerRecord:
    """Return the record of a layer with this content; raises as `read_record`."""
    text = check_seal(content.decode())
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    try:
        if not isinstance(data, dict):
            raise ValueError("it is not a record")
        check_format(data.get("format"), RECORD_FORMAT)
        return _RECORD.validate_python(data)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"no record has such a `{key}`") from None
    except RecursionError as error:
        raise ValueError("it is not a record") from error


def record_text(record: LayerRecord) -> str:
    """Return the content of a layer's record; the same record gives the same text."""
    return sealed(canonical_json({"format": RECORD_FORMAT, **asdict(record)}))
