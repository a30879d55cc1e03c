"""An image as an OCI archive: a gzip layer for the base and for each large package, and one for the rest.

The same image gives the same bytes; images that share a base or a package share its OCI layer in a registry.

Source: OCI image specification 1.1 (layer.md, config.md, image-layout.md). gzip, because Shifter's gateway
and older registries read no other compression.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.digests import canonical_json, sha256_of
from envbuild.errors import BuildError
from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.startup import labels
from envbuild.squashfs.reader import Entry, Squashfs
from envbuild.system import host
from envbuild.system.files import sha256
from envbuild.system.gzipped import gzip_writer

# The first member of an archive, by which it is recognized.
LAYOUT = "oci-layout"
_EPOCH = "1970-01-01T00:00:00Z"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# Higher levels take several times as long for a few per cent.
_LEVEL = 6
# Packages of this size have a separate OCI layer, up to a number that runtimes can mount (Docker: 127).
_LARGE_BYTES = 20_000_000
_MOST_LAYERS = 60
_BELOW = ("base", "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class OciLayer:
    """A layer of an OCI image, in a file."""

    file: Path
    """A tar, compressed by gzip."""
    digest: str
    content: str
    """``sha256:…`` of the file, and of the tar in it."""

    @property
    def descriptor(self) -> dict[str, object]:
        """The layer's entry in the image's manifest."""
        return {"mediaType": _LAYER, "digest": self.digest, "size": self.file.stat().st_size}


@dataclass(frozen=True, slots=True, kw_only=True)
class OciImage:
    """An OCI image: what an archive holds, and a registry takes."""

    name: str
    """``NAME:TAG``."""
    manifest: bytes
    config: bytes
    """As canonical JSON."""
    layers: Sequence[OciLayer]
    """From bottom to top."""

    @property
    def digest(self) -> str:
        """The digest by which registries name it."""
        return sha256_of(self.manifest)


def oci_image(image: ImageFile, work: Path, *, advanced: Callable[[int], None] = lambda _: None) -> OciImage:
    """Return an image as an OCI image, whose layers are files in `work`, an empty directory.

    `advanced` is called with the number of bytes of each file that was packed. BuildError: the file system
    holds a device, a socket or a named pipe. SquashfsError: it is damaged.
    """
    manifest, content = image.manifest, image.root
    groups = _groups(content, manifest)
    layers = [
        _write_layer(content, entries, work / f"{number}.tar.gz", advanced)
        for number, entries in enumerate(groups.values())
    ]
    config = canonical_json(_config(manifest, [*groups], layers)).encode()
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _descriptor(_CONFIG, config),
        "layers": [layer.descriptor for layer in layers],
        "annotations": labels(manifest),
    }
    return OciImage(
        name=f"{manifest.name}:{manifest.version}".replace("+", "_"),
        manifest=canonical_json(document).encode(),
        config=config,
        layers=layers,
    )


def write_archive(out: Path, image: OciImage) -> None:
    """Write an OCI image as an archive: the layout in a tar."""
    descriptor = _descriptor(_MANIFEST, image.manifest)
    annotations = {"org.opencontainers.image.ref.name": image.name}
    index = {"schemaVersion": 2, "manifests": [{**descriptor, "annotations": annotations}]}
    blobs = {sha256_of(blob): blob for blob in (image.config, image.manifest)}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, LAYOUT, canonical_json({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", canonical_json(index).encode())
        for directory in ("blobs", "blobs/sha256"):
            # Apptainer does not create missing parent directories.
            member = _member(directory, 0, mode=0o755)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        for digest, blob in sorted(blobs.items()):
            _add(archive, _blob_path(digest), blob)
        for layer in {layer.digest: layer for layer in image.layers}.values():
            with layer.file.open("rb") as file:
                archive.addfile(_member(_blob_path(layer.digest), layer.file.stat().st_size), file)


def _groups(content: Squashfs, manifest: Manifest) -> dict[str, dict[str, Entry]]:
    """Divide the entries of an image among OCI layers, by the offset of their data.

    Returns the name of each layer → path → entry. Entries without data (links, directories, empty files) go
    with the rest; each layer has the directories of its files, before these.
    """
    system = manifest.file_system
    layers = system.layers if system is not None else ()
    large = sorted(
        (layer for layer in layers if layer.size_bytes >= _LARGE_BYTES), key=lambda layer: -layer.size_bytes
    )
    own = {layer.name for layer in large[:_MOST_LAYERS]} - set(_BELOW)
    names = ["base", *(layer.name for layer in layers if layer.name in own), "rest"]
    groups: dict[str, dict[str, Entry]] = {name: {} for name in names}
    ends = [layer.offset + layer.size_bytes for layer in layers]
    directories: dict[str, Entry] = {}
    for entry in content.walk():
        if entry.kind == "directory":
            directories[entry.path] = entry
        offset = content.data_offset(entry)
        name = "rest" if offset is None else layers[bisect_right(ends, offset)].name
        group = groups["base" if name in _BELOW else name if name in own else "rest"]
        parts = entry.path.split("/")
        for count in range(2, len(parts)):
            above = "/".join(parts[:count])
            group.setdefault(above, directories[above])
        group[entry.path] = entry
    return {name: entries for name, entries in groups.items() if entries}


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


def _write_layer(
    content: Squashfs, entries: Mapping[str, Entry], out: Path, advanced: Callable[[int], None]
) -> OciLayer:
    with out.open("wb") as file, gzip_writer(file, level=_LEVEL, threads=host.cores()) as packed:
        sink = _Hashing(packed)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for entry in entries.values():
                _add_entry(tar, content, entry)
                advanced(entry.size)
    return OciLayer(file=out, digest=f"sha256:{sha256(out)}", content=f"sha256:{sink.digest.hexdigest()}")


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
