"""An image file as parts that travel: a registry stores each of them once, whatever image it belongs to.

The parts at their offsets, with zeros between them, are the file. Those of an image of ours follow its
layers, so that two images share the parts of the layers that they share. The file system of an image of
another tool is cut into pieces of the same length: a tool that adds files behind its data changes the last
piece alone.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envbuild.digests import sha256_of
from envbuild.errors import RequestError
from envbuild.image.file import ImageFile
from envbuild.squashfs.format import SUPERBLOCK_BYTES, Codec, Compressor, SquashfsError
from envbuild.system.references import BLOB_BYTES, EMPTY_DESCRIPTOR, INDEX, MANIFEST, Document

ARTIFACT = "application/vnd.envbuild.image.parts.v1"
_PART = "application/vnd.envbuild.image.part.v1"
_PACKED_PART = f"{_PART}+zstd"
# What Apptainer and SingularityCE take by `oras://`. Source: internal/pkg/client/oras of Apptainer 1.4.
_SIF_CONFIG = "application/vnd.sylabs.sif.config.v1+json"
_SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"
# Debian's names of architectures → those of OCI, where they differ.
_PLATFORMS = {
    "i386": "386",
    "armhf": "arm",
    "ppc64el": "ppc64le",
    "mipsel": "mipsle",
    "mips64el": "mips64le",
}
_TITLE = "org.opencontainers.image.title"
_LAYER, _LAYER_OFFSET = "io.envbuild.layer.digest", "io.envbuild.layer.offset"
# Of a part before it was compressed.
_PART_DIGEST, _PART_BYTES = "io.envbuild.part.digest", "io.envbuild.part.size"
_OFFSET, _FILE_DIGEST, _FILE_BYTES = (
    "io.envbuild.offset",
    "io.envbuild.file.digest",
    "io.envbuild.file.size",
)

_PIECE_BYTES = BLOB_BYTES
# Of the file system of another tool, whose last piece is sent again.
_FOREIGN_PIECE_BYTES = 32 << 20
# More than 256 GiB have in the shorter pieces.
MAX_PARTS = 8192
MAX_FILE_BYTES = 1 << 40
# Of all compressed parts of an image: before, which they take in memory.
MAX_PACKED_BYTES = 64 << 20
# Zeros between two parts; those that align the layers of an image are fewer.
MAX_GAP_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
_READ_BYTES = 4 << 20
# Inodes and names of two images begin with the same bytes if these share their large layers (`splice`).
_TABLES_PIECE_BYTES = 32 << 10
_MAX_TABLES_PIECES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A range of an image file."""

    name: str
    """For people: the name of a layer, ``head``, ``tables`` or ``tail``; ``+2`` marks its second piece."""
    offset: int
    size_bytes: int
    digest: str
    """``sha256:…`` of its bytes."""
    layer: str = ""
    """``sha256:…`` of the data of the layer that it is a part of, as stores and manifests have it."""
    layer_offset: int = 0
    """Bytes from the start of these data."""
    packed_digest: str = ""
    """``sha256:…`` of its bytes, compressed by zstd; empty if it travels as it is."""
    packed_bytes: int = 0

    @property
    def blob_digest(self) -> str:
        """``sha256:…`` of what travels."""
        return self.packed_digest or self.digest

    @property
    def blob_bytes(self) -> int:
        """Length of what travels."""
        return self.packed_bytes or self.size_bytes

    @property
    def descriptor(self) -> dict[str, object]:
        """Its descriptor in the manifest."""
        annotations = {_TITLE: self.name, _OFFSET: str(self.offset)}
        if self.layer:
            annotations |= {_LAYER: self.layer, _LAYER_OFFSET: str(self.layer_offset)}
        if self.packed_digest:
            annotations |= {_PART_DIGEST: self.digest, _PART_BYTES: str(self.size_bytes)}
        return {
            "mediaType": _PACKED_PART if self.packed_digest else _PART,
            "digest": self.blob_digest,
            "size": self.blob_bytes,
            "annotations": annotations,
        }

    def unpacked(self, packed: bytes) -> bytes:
        """Return its bytes, given what travels compressed; untrusted input. ValueError: it is damaged."""
        try:
            content = Codec(Compressor.ZSTD).decompress(packed, self.size_bytes)
        except SquashfsError as error:
            raise ValueError("a compressed part cannot be read") from error
        if len(content) != self.size_bytes:
            raise ValueError("a compressed part has another length")
        return content


def packed(content: bytes) -> bytes:
    """Return the bytes of a part, compressed."""
    return Codec(Compressor.ZSTD).compress(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an image file, in order."""

    parts: tuple[Part, ...]
    file_bytes: int
    """Length of the file."""
    file_digest: str
    """``sha256:…`` of the file."""

    def document(self, name: str) -> dict[str, object]:
        """Return the manifest that describes them; `name` is the file's, for people."""
        layers = [part.descriptor for part in self.parts]
        annotations = {_TITLE: name, _FILE_DIGEST: self.file_digest, _FILE_BYTES: str(self.file_bytes)}
        return {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": EMPTY_DESCRIPTOR,
            "layers": layers,
            "annotations": annotations,
        }

    def sif_document(self, name: str) -> dict[str, object]:
        """Return the manifest of the whole SIF as Apptainer pushes and pulls it; `name` as in `document`."""
        layer = {
            "mediaType": _SIF_LAYER,
            "digest": self.file_digest,
            "size": self.file_bytes,
            "annotations": {_TITLE: name},
        }
        config = {**EMPTY_DESCRIPTOR, "mediaType": _SIF_CONFIG}
        return {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}

    @staticmethod
    def parse(document: Document, name: str) -> Parts:
        """Return the parts that a manifest describes; untrusted input. RequestError: it describes none."""
        if document.data.get("artifactType") != ARTIFACT:
            raise RequestError(
                f"`{name}` is not an image that `envbuild push` sent",
                hint=f"`apptainer pull docker://{name}` converts an image of podman or Docker,"
                f" `apptainer pull oras://{name}` takes one that Apptainer pushed",
            )
        try:
            parts = tuple(_parsed(document.data["layers"]))
            annotations = _mapping(document.data["annotations"])
            file_bytes, file_digest = _number(annotations[_FILE_BYTES]), str(annotations[_FILE_DIGEST])
        except (KeyError, ValueError) as error:
            raise _damaged(name, str(error)) from None
        end = parts[-1].offset + parts[-1].size_bytes if parts else 0
        if end != file_bytes or file_bytes > MAX_FILE_BYTES or not _DIGEST.fullmatch(file_digest):
            raise _damaged(name, "its parts do not end where its file does")
        return Parts(parts=parts, file_bytes=file_bytes, file_digest=file_digest)


def index_of(sif: Document, parts: Document, architecture: str) -> dict[str, object]:
    """Return the index of an image that is in a registry both whole and by its parts.

    Apptainer takes what is for its platform; parts are for none. `architecture` is in Debian's words.
    """
    platform = {"architecture": _PLATFORMS.get(architecture, architecture), "os": "linux"}
    manifests = [{**sif.descriptor, "platform": platform}, {**parts.descriptor, "artifactType": ARTIFACT}]
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}


def digest_in_index(index: Document) -> str:
    """Return the digest of the manifest of an image's parts that an index names; untrusted input.

    Empty if it names none, or is not an index.
    """
    manifests = index.data.get("manifests")
    for entry in manifests if isinstance(manifests, list) else ():
        if isinstance(entry, dict) and entry.get("artifactType") == ARTIFACT:
            digest = entry.get("digest")
            return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else ""
    return ""


def _parsed(layers: object) -> Iterator[Part]:
    if not isinstance(layers, Sequence) or not 0 < len(layers) <= MAX_PARTS:
        raise ValueError(f"it does not have 1 to {MAX_PARTS} parts")
    end = unpacked_bytes = 0
    for layer in map(_mapping, layers):
        annotations = _mapping(layer["annotations"])
        offset, size_bytes, digest = _number(annotations[_OFFSET]), layer["size"], layer["digest"]
        packed_digest, packed_bytes = "", 0
        if layer.get("mediaType") == _PACKED_PART:
            packed_digest, packed_bytes = _blob(digest, size_bytes)
            digest, size_bytes = annotations[_PART_DIGEST], _number(annotations[_PART_BYTES])
            unpacked_bytes += size_bytes
            if max(unpacked_bytes, packed_bytes) > MAX_PACKED_BYTES:
                raise ValueError(f"its compressed parts have more than {MAX_PACKED_BYTES >> 20} MiB")
        digest, size_bytes = _blob(digest, size_bytes)
        if offset < end:
            raise ValueError("its parts overlap")
        if offset - end > MAX_GAP_BYTES:
            raise ValueError("its parts leave a gap")
        end = offset + size_bytes
        title = str(annotations.get(_TITLE, ""))
        name = re.sub(r"[^A-Za-z0-9._:+-]", "?", title[:100])
        yield Part(
            name=name,
            offset=offset,
            size_bytes=size_bytes,
            digest=digest,
            # False ones lead to other bytes than those of the file, whose digest is compared.
            layer=str(annotations.get(_LAYER, "")),
            layer_offset=_number(annotations.get(_LAYER_OFFSET, "0")),
            packed_digest=packed_digest,
            packed_bytes=packed_bytes,
        )


def _blob(digest: object, size_bytes: object) -> tuple[str, int]:
    """Return digest and size of a blob, once they are what they may be."""
    if type(size_bytes) is not int or not 0 < size_bytes <= MAX_FILE_BYTES:
        raise ValueError("a part has no usable size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("a part has no sha256 digest")
    return digest, size_bytes


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError("it is not in the form that `envbuild push` writes")
    return value


def _number(value: object) -> int:
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        raise ValueError("an offset or size is not a number")
    return int(value)


def _damaged(name: str, why: str) -> RequestError:
    return RequestError(
        f"`{name}` is damaged: {why}", hint="push the image again; do not use what this registry holds"
    )


def parts_of(image: ImageFile, *, advanced: Callable[[int], None] = lambda _: None) -> Parts:
    """Read an image once, and return its parts; `advanced` gets the number of bytes of each piece read."""
    whole = hashlib.sha256()
    parts: list[Part] = []
    names = Counter[str]()
    for found in _ranges(image):
        part = hashlib.sha256()
        is_empty = found.is_gap and found.end - found.begin <= MAX_GAP_BYTES
        is_packed = found.is_text and found.end - found.begin <= MAX_PACKED_BYTES // 2
        content = bytearray()
        for piece in _pieces(image, found.begin, found.end):
            whole.update(piece)
            part.update(piece)
            is_empty = is_empty and not any(piece)
            content += piece if is_packed else b""
            advanced(len(piece))
        # Gaps that align layers are zeros, as a new file is.
        if not is_empty:
            names[found.name] += 1
            # `oras pull` writes each to a file of this name.
            suffix = f"+{names[found.name]}" if names[found.name] > 1 else ""
            blob = packed(bytes(content)) if is_packed else b""
            parts.append(
                Part(
                    name=f"{found.name}{suffix}",
                    offset=found.begin,
                    size_bytes=found.end - found.begin,
                    digest=f"sha256:{part.hexdigest()}",
                    layer=found.layer,
                    layer_offset=found.layer_offset,
                    packed_digest=sha256_of(blob) if blob else "",
                    packed_bytes=len(blob),
                )
            )
    digest = f"sha256:{whole.hexdigest()}"
    return Parts(parts=tuple(parts), file_bytes=image.size_bytes, file_digest=digest)


def _pieces(image: ImageFile, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        piece = image.read(begin, min(_READ_BYTES, end - begin))
        if not piece:
            image.check_unchanged()
            raise AssertionError("an unchanged file does not end early")
        yield piece
        begin += len(piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """A range of an image file, before it is read."""

    name: str
    begin: int
    end: int
    layer: str = ""
    layer_offset: int = 0
    is_gap: bool = False
    is_text: bool = False
    """Whether it is long and compresses well."""


def _ranges(image: ImageFile) -> Iterator[_Range]:
    """Yield ranges that follow each other, and cover the file."""
    root, size_bytes = image.root, image.size_bytes
    system = image.manifest.file_system if image.built_by_envbuild else None
    if system is None:
        # The superblock changes with the tables; the data begin behind it.
        end = root.offset + SUPERBLOCK_BYTES
        yield _Range(name="head", begin=0, end=end)
        for begin, stop in _cut(end, size_bytes, _FOREIGN_PIECE_BYTES):
            yield _Range(name="data", begin=begin, end=stop)
        return
    end = 0
    for index, layer in enumerate(system.placed_layers):
        start = root.offset + layer.offset
        if end < start:
            # In front of the first there are zeros, too, which align the file system.
            is_head = index == 0
            name = "head" if is_head else "gap"
            yield _Range(name=name, begin=end, end=start, is_gap=not is_head, is_text=is_head)
        end = start + layer.size_bytes
        for begin, stop in _cut(start, end, _PIECE_BYTES):
            offset = begin - start
            yield _Range(name=layer.name, begin=begin, end=stop, layer=layer.data, layer_offset=offset)
    tables = root.offset + system.tables_offset
    if end < tables:
        yield _Range(name="gap", begin=end, end=tables, is_gap=True)
    system_end = root.offset + system.size_bytes
    names = min(max(tables, root.offset + root.superblock.directory_table), system_end)
    piece_bytes = _TABLES_PIECE_BYTES
    while system_end - tables > piece_bytes * _MAX_TABLES_PIECES:
        piece_bytes *= 2
    for begin, stop in (*_cut(tables, names, piece_bytes), *_cut(names, system_end, piece_bytes)):
        yield _Range(name="tables", begin=begin, end=stop)
    if system_end < size_bytes:
        yield _Range(name="tail", begin=system_end, end=size_bytes, is_text=True)


def _cut(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    for start in range(begin, end, most):
        yield start, min(start + most, end)
