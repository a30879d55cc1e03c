"""An image as an OCI image: gzip layers for the base, for each large package, and for few small ones each.

The same image gives the same bytes; images that share a base or a package share its OCI layer in a registry,
and one package more changes a small layer.

Source: OCI image specification 1.1 (layer.md, config.md, image-layout.md). gzip, because Shifter's gateway
and older registries read no other compression.
"""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import BuildError
from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.file import ImageFile
from envbuild.image.model import ImageLayer, Manifest
from envbuild.image.startup import labels
from envbuild.squashfs.format import NONE, UNCOMPRESSED_BLOCK
from envbuild.squashfs.reader import Entry, FileInode, Squashfs
from envbuild.system import host
from envbuild.system.files import sha256
from envbuild.system.gzipped import WRITER, gzip_writer
from envbuild.system.references import MANIFEST

# The first member of an archive, by which it is recognized.
LAYOUT = "oci-layout"
_EPOCH = "1970-01-01T00:00:00Z"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# Higher levels take several times as long for a few per cent.
_LEVEL = 6
# Packages of this size have a separate OCI layer. Smaller ones are divided by their names, so that one
# package more, or another release, changes one layer. Together fewer than runtimes can mount (Docker: 127).
_LARGE_BYTES = 4_000_000
_MOST_LARGE = 60
_BINS = 40
_BELOW = ("base", "system")
_REST = "rest"
# Raised if other bytes are packed from the same files.
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContent:
    """The files of an OCI layer, before they are packed."""

    name: str
    """For people: what it was made from."""
    entries: Mapping[str, Entry]
    """By their paths, directories first."""
    key: str
    """``sha256:…`` of all that decides the packed bytes; empty if that is not known without reading them."""

    @property
    def size_bytes(self) -> int:
        """Length of its files together."""
        return sum(entry.size for entry in self.entries.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OciLayer:
    """A layer of an OCI image: a tar, compressed by gzip."""

    digest: str
    content: str
    """``sha256:…`` of the compressed bytes, and of the tar."""
    size_bytes: int
    """Compressed."""

    @property
    def descriptor(self) -> dict[str, object]:
        """The layer's entry in the image's manifest."""
        return {"mediaType": _LAYER, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class OciImage:
    """An OCI image: what an archive holds, and a registry takes."""

    name: str
    """``NAME:TAG``."""
    document: Mapping[str, object]
    """Its manifest."""
    config: bytes
    """As canonical JSON."""
    layers: Sequence[OciLayer]
    """From bottom to top."""

    @property
    def manifest(self) -> bytes:
        """The bytes of its manifest."""
        return canonical_json(self.document).encode()

    @property
    def digest(self) -> str:
        """The digest by which registries name it."""
        return sha256_of(self.manifest)


def layer_contents(image: ImageFile) -> list[LayerContent]:
    """Divide the entries of an image among OCI layers, by the offset of their data; SquashfsError: damage.

    Entries without data (links, directories, empty files) go with the rest; each layer has the directories of
    its files, before these.
    """
    root, system = image.root, image.manifest.file_system
    group_of = _groups(system.layers if system is not None else ())
    groups: dict[str, dict[str, Entry]] = {name: {} for name in (*group_of.values(), _REST)}
    data = _Data(root, system.placed_layers if system is not None else ())
    directories: dict[str, Entry] = {}
    for entry in root.walk():
        if entry.kind == "directory":
            directories[entry.path] = entry
        layer = data.layer_of(entry)
        group = groups[_REST if layer is None else group_of[layer.name]]
        parts = entry.path.split("/")
        for count in range(2, len(parts)):
            above = "/".join(parts[:count])
            group.setdefault(above, directories[above])
        group[entry.path] = entry
    return [
        LayerContent(name=name, entries=entries, key=data.key(entries.values()))
        for name, entries in groups.items()
        if entries
    ]


def oci_image(image: ImageFile, contents: Sequence[LayerContent], layers: Sequence[OciLayer]) -> OciImage:
    """Return an image as an OCI image, of its `layer_contents` and the layers that these were packed as."""
    manifest = image.manifest
    config = canonical_json(_config(manifest, [content.name for content in contents], layers)).encode()
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _descriptor(_CONFIG, config),
        "layers": [layer.descriptor for layer in layers],
        "annotations": labels(manifest),
    }
    return OciImage(
        name=f"{manifest.name}:{manifest.version}".replace("+", "_"),
        document=document,
        config=config,
        layers=layers,
    )


def pack_layer(
    root: Squashfs,
    content: LayerContent,
    directory: Path,
    *,
    advanced: Callable[[int], None] = lambda _: None,
) -> OciLayer:
    """Pack a layer as a file in `directory`, at `layer_file`.

    `advanced` is called with the number of bytes of each file that was packed. BuildError: it holds a device,
    a socket or a named pipe. SquashfsError: it is damaged.
    """
    part = directory / "part"
    with part.open("wb") as file, gzip_writer(file, level=_LEVEL, threads=host.cores()) as packed:
        sink = _Hashing(packed)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for entry in content.entries.values():
                _add_entry(tar, root, entry)
                advanced(entry.size)
    layer = OciLayer(
        digest=f"sha256:{sha256(part)}",
        content=f"sha256:{sink.digest.hexdigest()}",
        size_bytes=part.stat().st_size,
    )
    part.replace(layer_file(directory, layer))
    return layer


def layer_file(directory: Path, layer: OciLayer) -> Path:
    """Return where `pack_layer` writes a layer."""
    return directory / layer.digest.removeprefix("sha256:")


def write_archive(out: Path, image: OciImage, directory: Path) -> None:
    """Write an OCI image, whose layers were packed in `directory`, as an archive: the layout in a tar."""
    descriptor = _descriptor(MANIFEST, image.manifest)
    annotations = {"org.opencontainers.image.ref.name": image.name}
    index = {"schemaVersion": 2, "manifests": [{**descriptor, "annotations": annotations}]}
    blobs = {sha256_of(blob): blob for blob in (image.config, image.manifest)}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, LAYOUT, canonical_json({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", canonical_json(index).encode())
        for parent in ("blobs", "blobs/sha256"):
            # Apptainer does not create missing parent directories.
            member = _member(parent, 0, mode=0o755)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        for digest, blob in sorted(blobs.items()):
            _add(archive, _blob_path(digest), blob)
        for layer in {layer.digest: layer for layer in image.layers}.values():
            with layer_file(directory, layer).open("rb") as file:
                archive.addfile(_member(_blob_path(layer.digest), layer.size_bytes), file)


def _groups(layers: Sequence[ImageLayer]) -> dict[str, str]:
    """Return the name of each layer of an image → the name of its OCI layer, from bottom to top."""
    large = sorted(
        (layer for layer in layers if layer.size_bytes >= _LARGE_BYTES), key=lambda layer: -layer.size_bytes
    )
    own = {layer.name for layer in large[:_MOST_LARGE]}
    bins: dict[int, list[str]] = {}
    for layer in layers:
        if layer.name not in own and layer.name not in _BELOW:
            number = int.from_bytes(hashlib.sha256(layer.name.encode()).digest()[:4])
            bins.setdefault(number % _BINS, []).append(layer.name)
    shared = {name: ", ".join(names) for names in bins.values() for name in names}
    return {
        layer.name: "base" if layer.name in _BELOW else shared.get(layer.name, layer.name) for layer in layers
    }


class _Data:
    """Where the contents of the files of an image lie, by the layers that its manifest has the digests of."""

    def __init__(self, root: Squashfs, layers: Sequence[ImageLayer]) -> None:
        """`layers` are in the order in which their data lie."""
        self._root, self._layers = root, layers
        self._ends = [layer.offset + layer.size_bytes for layer in layers]

    def layer_of(self, entry: Entry) -> ImageLayer | None:
        """Return the layer that holds the start of a file; None for an entry without data."""
        offset = self._root.data_offset(entry)
        return None if offset is None else self._layers[bisect_right(self._ends, offset)]

    def key(self, entries: Iterable[Entry]) -> str:
        """Return the key of entries; see `LayerContent.key`."""
        superblock = self._root.superblock
        try:
            described = [self._described(entry) for entry in entries]
        except _UnknownError:
            return ""
        values = [_FORMAT, WRITER, _LEVEL, superblock.compressor.name, superblock.block_bytes, described]
        return sha256_of(canonical_json(values).encode())

    def _described(self, entry: Entry) -> list[object]:
        """Return all of an entry that its member of a tar depends on."""
        values: list[object] = [entry.path, entry.kind, entry.mode, entry.size, entry.target]
        inode = self._root.inode(entry.inode_offset)
        if isinstance(inode, FileInode):
            blocks = bytes(inode.blocks)
            values += [blocks.hex(), self._located(inode.start, _stored_bytes(blocks))]
            if inode.fragment != NONE:
                fragment = self._root.fragment_range(inode.fragment)
                values += [self._located(*fragment), inode.fragment_offset]
        return values

    def _located(self, offset: int, size_bytes: int) -> list[object]:
        """Return stored bytes as the digest of a layer and an offset in it, whatever the image."""
        if not size_bytes:
            return []
        index = bisect_right(self._ends, offset)
        layer = self._layers[index] if index < len(self._layers) else None
        if layer is None or offset < layer.offset or offset + size_bytes > self._ends[index]:
            raise _UnknownError
        return [layer.data, offset - layer.offset]


def _stored_bytes(blocks: bytes) -> int:
    """Return the stored length of the blocks of a file together."""
    return sum(length & (UNCOMPRESSED_BLOCK - 1) for (length,) in struct.iter_unpack("<I", blocks))


class _UnknownError(Exception):
    """Bytes of a file lie in no layer, or in two: their digest is not known."""


def _config(manifest: Manifest, names: Sequence[str], layers: Sequence[OciLayer]) -> dict[str, object]:
    values = apply(manifest.environment, {"PATH": DEFAULT_PATH})
    return {
        "created": _EPOCH,
        "architecture": manifest.architecture,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in sorted(values.items()) if value],
            "Cmd": ["/bin/bash", "--norc"],
            "Labels": labels(manifest),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.content for layer in layers]},
        "history": [{"created": _EPOCH, "created_by": f"envbuild: {name}"} for name in names],
    }


class _Hashing(io.RawIOBase):
    """Passes bytes on, and computes their digest."""

    def __init__(self, sink: io.RawIOBase) -> None:
        self._sink = sink
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # typeshed's buffer protocol
        self.digest.update(data)
        self._sink.write(data)
        return len(data)


def _add_entry(tar: tarfile.TarFile, layer: Squashfs, entry: Entry) -> None:
    name = entry.path.strip("/")
    if entry.kind in ("whiteout", "other"):
        raise BuildError(
            f"`{entry.path}` is a device, a socket or a named pipe: OCI layers here hold none",
            hint="take it out of the package or base that brings it, and build again",
        )
    # The root has no name; runtimes create it.
    if not name:
        return
    member = _member(name, entry.size if entry.kind == "file" else 0, mode=entry.mode)
    if entry.kind == "file":
        with layer.open(entry) as content:
            tar.addfile(member, content)
        return
    member.type = tarfile.DIRTYPE if entry.kind == "directory" else tarfile.SYMTYPE
    member.linkname = entry.target
    tar.addfile(member)


def _member(name: str, size: int, *, mode: int = 0o644) -> tarfile.TarInfo:
    """Return a member that belongs to root and has time 0."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    return member


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_member(name, len(content)), io.BytesIO(content))


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": sha256_of(content), "size": len(content)}


def _blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
