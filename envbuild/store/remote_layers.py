"""Finished layers in a registry: each has a tag made of its key, and a signed statement.

The manifest of a layer names its record, the tables of its squashfs, and the data in pieces, which are the
blobs that images with this layer have, too (`envbuild.image.parts`). The statement is an annotation: it has
the key, and the digests of record and squashfs. All that comes from a registry is untrusted input.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import RequestError
from envbuild.store.records import RECORD_LIMIT_BYTES, LayerRecord, hex_of, parse_record, record_text
from envbuild.system.envelopes import Envelope, RefusedError, Signer, Statement, Verifier
from envbuild.system.files import copy_range, read_range
from envbuild.system.references import BLOB_BYTES, EMPTY, EMPTY_DESCRIPTOR, MANIFEST, Document
from envbuild.system.registry import RegistryError, Repository
from envbuild.system.squashfs import DATA_START, data_range, digests

ARTIFACT = "application/vnd.envbuild.layer.v1"
PREDICATE = "urn:envbuild:layer:v1"
_RECORD = "application/vnd.envbuild.layer.record.v1+json"
_TABLES = "application/vnd.envbuild.layer.tables.v1"
_DATA = "application/vnd.envbuild.layer.data.v1"
_STATEMENT = "io.envbuild.statement"
MAX_STATEMENT_BYTES = 64 << 10
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OTHER_FORM = "its manifest is not in the form that `build --push-layers` writes"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob of a registry."""

    digest: str
    size_bytes: int

    def descriptor(self, kind: str) -> dict[str, object]:
        """Return its descriptor in a manifest."""
        return {"mediaType": kind, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLayer:
    """A finished layer whose squashfs is in a registry."""

    record: LayerRecord
    tables: Blob
    """The superblock of the squashfs, and what follows its data."""
    data: tuple[Blob, ...]
    """The data between the two, in order."""

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All that the squashfs is assembled from."""
        return (self.tables, *self.data)

    def assemble(self, files: Sequence[BinaryIO], squashfs: Path) -> None:
        """Write the squashfs from open files with its `blobs`; RefusedError: it is not the record's."""
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        if sizes != [blob.size_bytes for blob in self.blobs]:
            raise RefusedError("its manifest names one blob with two sizes")
        tables, *data = (file.fileno() for file in files)
        begin = at = min(DATA_START, self.tables.size_bytes)
        with squashfs.open("xb") as target:
            copy_range(tables, 0, begin, target.fileno(), 0)
            for blob, source in zip(self.data, data, strict=True):
                copy_range(source, 0, blob.size_bytes, target.fileno(), at)
                at += blob.size_bytes
            copy_range(tables, begin, self.tables.size_bytes - begin, target.fileno(), at)
        if digests(squashfs) != self.record.digests:
            raise RefusedError("its blobs are not the squashfs of its record")


def tag_of(key: str) -> str:
    """Return the tag of a layer; RequestError unless `key` is a sha256 digest."""
    return f"layer-{hex_of(key)}"


def _statement_on(key: str, record_digest: str, squashfs_digest: str) -> Statement:
    subjects = {"record": hex_of(record_digest), "squashfs": hex_of(squashfs_digest)}
    return Statement(subjects=subjects, predicate_type=PREDICATE, predicate={"key": key})


# Reading


def find_layer(key: str, document: Document, repository: Repository, keys: Sequence[Verifier]) -> RemoteLayer:
    """Return the layer that a manifest describes; of its blobs, the record alone is fetched.

    RefusedError: none of `keys` states that it is the layer of `key`, or it is damaged. RegistryError,
    NetworkError: the record does not come.
    """
    # Nothing is fetched that no key vouches for.
    signed = _statement(document, keys)
    if signed.predicate_type != PREDICATE or signed.predicate.get("key") != key:
        raise RefusedError("its statement is on another layer")
    blobs = _blobs(document.data.get("layers"))
    records, tables = blobs.get(_RECORD, []), blobs.get(_TABLES, [])
    if len(records) != 1 or len(tables) != 1 or records[0].size_bytes > RECORD_LIMIT_BYTES:
        raise RefusedError(_OTHER_FORM)
    if signed.subjects.get("record") != hex_of(records[0].digest):
        raise RefusedError("its record is not the one that was signed")
    try:
        record = parse_record(repository.pull_bytes(records[0].digest, records[0].size_bytes))
    except ValueError as error:
        raise RefusedError(f"its record cannot be used: {error}") from error
    if record.key != key or signed != _statement_on(key, records[0].digest, record.blob):
        raise RefusedError("its record is not on the layer that was signed")
    layer = RemoteLayer(record=record, tables=tables[0], data=tuple(blobs.get(_DATA, ())))
    if sum(blob.size_bytes for blob in layer.blobs) != record.size_bytes:
        raise RefusedError("its blobs do not have the size of its squashfs")
    return layer


def _statement(document: Document, keys: Sequence[Verifier]) -> Statement:
    """Return the signed statement of a manifest."""
    annotations = document.data.get("annotations")
    text = annotations.get(_STATEMENT) if isinstance(annotations, dict) else None
    if document.data.get("artifactType") != ARTIFACT or not isinstance(text, str):
        raise RefusedError(_OTHER_FORM)
    if len(text) > MAX_STATEMENT_BYTES:
        raise RefusedError("its statement is too long")
    envelope = Envelope.parse(text.encode(errors="replace"))
    if envelope.signer(keys) is None:
        raise RefusedError("another key signed it")
    return envelope.statement()


def _blobs(layers: object) -> dict[str, list[Blob]]:
    """Return media type → blobs, in order."""
    blobs: dict[str, list[Blob]] = {}
    for entry in layers if isinstance(layers, list) else ():
        size, digest = (entry.get("size"), entry.get("digest")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or size <= 0 or not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            raise RefusedError(_OTHER_FORM)
        blobs.setdefault(str(entry.get("mediaType")), []).append(Blob(digest, size))
    return blobs


# Writing


def push_layer(
    record: LayerRecord,
    squashfs: Path,
    repository: Repository,
    key: Signer,
    advanced: Callable[[int], None] = lambda _: None,
) -> int:
    """Push a finished layer under its key, signed; return the number of bytes that the registry lacked.

    `advanced` gets the number of bytes of each piece of the squashfs. RequestError: the layer is damaged.
    RegistryError, NetworkError: the registry refuses it, or does not answer.
    """
    if squashfs.stat().st_size != record.size_bytes or digests(squashfs) != record.digests:
        problem = f"layer {record.name} in the store is damaged"
        raise RequestError(problem, hint="`envbuild cache verify --repair`, then build it again")
    begin, end = data_range(squashfs)
    data: list[Blob] = []
    sent_bytes = 0
    with squashfs.open("rb") as file:
        for start in range(begin, end, BLOB_BYTES):
            size_bytes = min(BLOB_BYTES, end - start)
            digest = hashlib.sha256()
            for piece in read_range(file.fileno(), start, size_bytes):
                digest.update(piece)
            data.append(blob := Blob(f"sha256:{digest.hexdigest()}", size_bytes))
            if repository.push_blob(blob.digest, size_bytes, file, start, advanced):
                sent_bytes += size_bytes
        around = ((0, begin), (end, record.size_bytes - end))
        tables = b"".join(piece for place in around for piece in read_range(file.fileno(), *place))
    text = record_text(record).encode()
    for content in (text, tables, EMPTY):
        if repository.push_bytes(content):
            sent_bytes += len(content)
    advanced(len(tables))
    document = _document(
        record, Blob(sha256_of(text), len(text)), Blob(sha256_of(tables), len(tables)), data, key
    )
    with contextlib.suppress(RegistryError):
        if repository.manifest(tag_of(record.key)).digest == sha256_of(canonical_json(document)):
            return sent_bytes
    repository.put_manifest(document, tag_of(record.key))
    return sent_bytes


def _document(
    record: LayerRecord, text: Blob, tables: Blob, data: Sequence[Blob], key: Signer
) -> dict[str, object]:
    statement = _statement_on(record.key, text.digest, record.blob).signed(key)
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": EMPTY_DESCRIPTOR,
        "layers": [
            text.descriptor(_RECORD),
            tables.descriptor(_TABLES),
            *(blob.descriptor(_DATA) for blob in data),
        ],
        "annotations": {"org.opencontainers.image.title": record.name, _STATEMENT: statement.decode()},
    }
