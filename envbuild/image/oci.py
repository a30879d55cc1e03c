"""An image as an OCI archive: one gzip layer for each of its file systems, the same bytes for the same image.

Source: OCI image specification 1.1 (layer.md, config.md, image-layout.md). gzip, because Shifter's
gateway and older registries read no other compression.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import BuildError
from envbuild.image.environment import DEFAULT_PATH, apply
from envbuild.image.model import Manifest
from envbuild.image.squashfs import Entry, Squashfs
from envbuild.image.startup import labels
from envbuild.system.files import sha256

# The first member of an archive of ours, by which one is told from other files.
LAYOUT = "oci-layout"
_EPOCH = "1970-01-01T00:00:00Z"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
# Higher levels take several times as long for a few per cent.
_LEVEL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer that was written.

    Attributes
    ----------
    file : Path
        The compressed tar.
    digest, content : str
        ``sha256:…`` of that file, and of the tar in it.
    """

    file: Path
    digest: str
    content: str


def write_archive(
    out: Path,
    manifest: Manifest,
    layers: Sequence[Squashfs],
    *,
    work: Path,
    advanced: Callable[[int], None] = lambda _: None,
) -> str:
    """Write an OCI archive and return the digest by which registries name the image.

    Parameters
    ----------
    layers : sequence of Squashfs
        From bottom to top.
    work : Path
        An empty directory with space for the compressed layers.
    advanced : callable
        Called with the number of bytes each time that so many of the contents were packed.

    Raises
    ------
    BuildError
        A layer holds a device, a socket or a named pipe.
    ValueError
        A layer is damaged.
    """
    made = [_write_layer(layer, work / f"{at}.tar.gz", advanced) for at, layer in enumerate(layers)]
    blobs: dict[str, bytes] = {}
    config = _blob(blobs, _CONFIG, _config(manifest, made))
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": config,
        "layers": [
            {"mediaType": _LAYER, "digest": layer.digest, "size": layer.file.stat().st_size} for layer in made
        ],
        "annotations": labels(manifest),
    }
    found = _blob(blobs, _MANIFEST, document)
    name = f"{manifest.name}:{manifest.version}".replace("+", "_")
    index = {
        "schemaVersion": 2,
        "manifests": [{**found, "annotations": {"org.opencontainers.image.ref.name": name}}],
    }
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, LAYOUT, _canonical({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _canonical(index))
        for directory in ("blobs", "blobs/sha256"):
            # Apptainer makes no directory that the archive does not name.
            member = _member(directory, 0, mode=0o755)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        for digest, content in sorted(blobs.items()):
            _add(archive, _place(digest), content)
        for layer in {layer.digest: layer for layer in made}.values():
            with layer.file.open("rb") as file:
                member = _member(_place(layer.digest), layer.file.stat().st_size)
                archive.addfile(member, file)
    return str(found["digest"])


def _config(manifest: Manifest, layers: Sequence[_Layer]) -> dict[str, object]:
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
        "history": [
            {"created": _EPOCH, "created_by": "envbuild: " + " ".join(part.layers)} for part in manifest.parts
        ],
    }


def _write_layer(layer: Squashfs, out: Path, advanced: Callable[[int], None]) -> _Layer:
    with (
        out.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed,
    ):
        sink = _Hashing(packed)
        with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for entry in layer.walk():
                _add_entry(tar, layer, entry)
                advanced(entry.size)
    return _Layer(file=out, digest=f"sha256:{sha256(out)}", content=f"sha256:{sink.digest.hexdigest()}")


class _Hashing(io.RawIOBase):
    """Passes bytes on, and knows the digest of all of them."""

    def __init__(self, sink: gzip.GzipFile) -> None:
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
    if entry.kind == "whiteout":
        above, _, last = name.rpartition("/")
        tar.addfile(_member(f"{above}/{_WHITEOUT}{last}".lstrip("/"), 0))
        return
    if entry.kind == "other":
        raise BuildError(
            f"`{entry.path}` is a device, a socket or a named pipe: OCI layers here hold none",
            hint="take it out of the package or base that brings it, and build again",
        )
    # The root's own entry would name nothing; runtimes make it.
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
    if entry.opaque:
        tar.addfile(_member(f"{name}/{_OPAQUE}", 0))


def _member(name: str, size: int, *, mode: int = 0o644) -> tarfile.TarInfo:
    """Return a member of root's, of time 0."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    return member


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_member(name, len(content)), io.BytesIO(content))


def _blob(blobs: dict[str, bytes], kind: str, data: object) -> dict[str, object]:
    content = _canonical(data)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": kind, "digest": digest, "size": len(content)}


def _canonical(data: object) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
