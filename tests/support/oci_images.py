"""Images as podman and Docker push them, put into the registry of the tests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import zstandard

from tests.support.registry import Registry
from tests.support.roots import entry

Member = tuple[tarfile.TarInfo, bytes]

CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

OS_RELEASE = 'NAME="Debian GNU/Linux"\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nID=debian\n'
GLIBC = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n\0"
STATUS = """\
Package: git
Status: install ok installed

Package: vim
Status: deinstall ok config-files

Package: libc6
Status: install ok installed
"""
# A root as a distribution packs it, as far as envbuild reads it.
ROOT: tuple[Member, ...] = (
    entry("usr", "dir"),
    entry("usr/bin", "dir"),
    entry("bin", "link", "usr/bin"),
    entry("lib", "link", "usr/lib"),
    entry("usr/bin/python3.11", content="#!/bin/true\n"),
    entry("usr/bin/python3", "link", "python3.11"),
    entry("usr/lib/x86_64-linux-gnu/libc.so.6", content=GLIBC),
    entry("usr/lib/os-release", content=OS_RELEASE),
    entry("etc/os-release", "link", "../usr/lib/os-release"),
    entry("var/lib/dpkg/status", content=STATUS),
)


def tar(*members: Member) -> bytes:
    """Return a layer, not compressed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def gzipped(*members: Member) -> bytes:
    return gzip.compress(tar(*members), mtime=0)


def zstd(*members: Member) -> bytes:
    return zstandard.ZstdCompressor().compress(tar(*members))


class Shelf:
    """A repository of a registry to which images are pushed."""

    def __init__(self, registry: Registry, name: str = "team/root") -> None:
        self.registry, self.name = registry, name

    def reference(self, version: str) -> str:
        return f"{self.registry.host}/{self.name}{'@' if ':' in version else ':'}{version}"

    def blob(self, content: bytes, media_type: str = LAYER) -> dict[str, Any]:
        """Put a blob, and return its descriptor."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.registry.blobs[digest] = content
        self.registry.repositories.add((self.name, digest))
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def manifest(self, data: Mapping[str, object], tag: str = "") -> str:
        """Put a manifest, perhaps under a tag, and return its digest."""
        text = json.dumps(data).encode()
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        self.registry.manifests[f"{self.name}@{digest}"] = text
        if tag:
            self.registry.manifests[f"{self.name}:{tag}"] = text
        return digest

    def image(
        self,
        layers: Iterable[bytes | Mapping[str, object]],
        tag: str = "",
        architecture: str = "amd64",
        **changes: object,
    ) -> str:
        """Put an image of layers, or of their descriptors, and return the digest of its manifest."""
        described = [self.blob(layer) if isinstance(layer, bytes) else layer for layer in layers]
        config = {"architecture": architecture, "os": "linux", "rootfs": {"type": "layers"}}
        data = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(json.dumps(config).encode(), CONFIG),
            "layers": described,
        }
        return self.manifest({**data, **changes}, tag)

    def index(self, images: Sequence[tuple[str, str]], tag: str = "") -> str:
        """Put an index of images, each with its architecture, and return its digest."""
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": len(self.registry.manifests[f"{self.name}@{digest}"]),
                "platform": {"architecture": architecture, "os": "linux"},
            }
            for digest, architecture in images
        ]
        return self.manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}, tag)
