"""Pins the files of a base's finished root.

Source: OCI image specification 1.1 (image layout, manifest, configuration).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.lock.model import RootPin
from envbuild.spec.base import BaseImage
from envbuild.spec.load import Loaded
from envbuild.spec.yamlfile import shorten
from envbuild.system.files import IrregularError, is_directory, read_input, sha256
from envbuild.system.network import MAX_FILE_BYTES

_LIMIT_BYTES = 4 << 20
_MAX_LAYERS = 512
_MAX_LAYER_BYTES = MAX_FILE_BYTES
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LAYERS = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar|docker\.image\.rootfs\.diff\.tar)(?:[.+](?:gzip|zstd))?"
)
_FOREIGN = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.nondistributable|docker\.image\.rootfs\.foreign)\."
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


def root_pins(base: Loaded[BaseImage], architecture: str) -> tuple[RootPin, ...]:
    """Return the files of a base's finished root, from bottom to top; none for a base of packages.

    RequestError: it is missing, differs from the definition's digest, or is for another architecture.
    """
    root, finished = base.value.root, FinishedRoot.of(base)
    if root is None or finished is None:
        return ()
    path = finished.path
    at = Location(path=base.path)
    if root.kind == "oci":
        if not is_directory(path):
            hint = "correct `place` under `root` of the base image: it names an OCI layout"
            raise RequestError(f"there is no directory `{path}`", at=at, hint=hint)
        return _Layout(path, at, architecture).layers(root.sha256)
    try:
        size_bytes, digest = path.stat().st_size, sha256(path)
    except (FileNotFoundError, IrregularError):
        hint = "correct `place` under `root` of the base image, or put the file there"
        raise RequestError(f"there is no file `{path}`", at=at, hint=hint) from None
    except OSError as error:
        hint = "check that you may read it; `root` of the base image names it"
        raise RequestError(f"`{path}` cannot be read: {error.strerror}", at=at, hint=hint) from None
    if not _NAME.fullmatch(path.name):
        hint = "name it with letters, digits, `.`, `_` and `-`"
        raise RequestError(f"`{path.name}` cannot be locked", at=at, hint=hint)
    if digest != root.sha256:
        raise RequestError(
            f"`{path}` is another file: its sha256 is {digest}, and the definition says {root.sha256}",
            at=at,
            hint="if it is the right one, put its sha256 into the definition",
        )
    return (RootPin(kind=root.kind, file=path.name, size_bytes=size_bytes, sha256=digest),)


class ManifestError(Exception):
    """A manifest is not one that can be a base; `problem` and `hint` say why."""

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.hint = problem, hint


def config_digest(manifest: Mapping[str, Any]) -> str:
    """Return the hex digest of the configuration that a manifest names; ManifestError if it names none."""
    return _hex(manifest.get("config"))


def check_platform(config: Mapping[str, Any], architecture: str) -> None:
    """Raise a ManifestError if a configuration is of an image for another platform."""
    if config.get("architecture") != architecture or config.get("os") != "linux":
        platform = f"{shorten(str(config.get('os')))}/{shorten(str(config.get('architecture')))}"
        raise ManifestError(f"is for {platform}", f"this machine is linux/{architecture}")


def layers_of(manifest: Mapping[str, Any]) -> tuple[RootPin, ...]:
    """Return the layers of a manifest, from bottom to top; ManifestError if a base cannot have them."""
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= _MAX_LAYERS:
        raise ManifestError(f"names no layers, or more than {_MAX_LAYERS}")
    pins = []
    for layer in layers:
        digest, size, kind = _hex(layer), layer.get("size"), str(layer.get("mediaType"))
        name = f"the layer sha256:{digest[:12]}…"
        if _FOREIGN.match(kind) or layer.get("urls"):
            raise ManifestError(f"has its data elsewhere than in its registry ({name})", _HINT_FOREIGN)
        if kind.endswith("+encrypted"):
            raise ManifestError(f"is encrypted ({name})", "use an image that is not encrypted")
        if not _LAYERS.fullmatch(kind) or type(size) is not int or not 0 <= size <= _MAX_LAYER_BYTES:
            raise ManifestError(f"has a layer of an unknown kind ({name}: `{shorten(kind)}`)", _HINT_LAYERS)
        pins.append(
            RootPin(kind="oci", file=f"{digest}.layer", size_bytes=size, sha256=digest, media_type=kind)
        )
    return tuple(pins)


def _hex(descriptor: object) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise ManifestError("names no sha256 of its configuration, or of a layer")
    return match[1]


_HINT_FOREIGN = "push a copy that has all of its layers: `skopeo copy` makes one"
_HINT_LAYERS = "layers are tar archives, plain or packed by gzip or zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRoot:
    """The place of a base image's finished root."""

    base: str
    """Name of the base image."""
    definition: Path
    """Its file."""
    path: Path
    """The root: a file, or the directory of an OCI image layout."""

    @classmethod
    def of(cls, base: Loaded[BaseImage]) -> FinishedRoot | None:
        """Return the root of a base image; None for one that is made of packages."""
        if base.value.root is None:
            return None
        path = base.path.parent / base.value.root.place
        return cls(base=base.value.name, definition=base.path, path=path)

    def path_of(self, pin: RootPin) -> Path:
        """Return the path of one of its files, as the definition states it."""
        return self.path / "blobs" / "sha256" / pin.sha256 if pin.kind == "oci" else self.path


_WRITTEN = "name a layout as `skopeo copy docker://IMAGE oci:DIR` or `podman save` writes it, whole"


class _Layout:
    """The directory of an OCI image layout; files are identified by digest alone."""

    def __init__(self, directory: Path, at: Location, architecture: str) -> None:
        self._blobs = directory / "blobs" / "sha256"
        self._at = at
        self._architecture = architecture

    def layers(self, manifest: str) -> tuple[RootPin, ...]:
        content = self._json(manifest)
        if "manifests" in content:
            raise self._wrong(manifest, "is an index of several images", self._offered(content))
        try:
            check_platform(self._json(config_digest(content)), self._architecture)
            return layers_of(content)
        except ManifestError as error:
            raise self._wrong(manifest, error.problem, error.hint) from None

    def _json(self, digest: str) -> dict[str, Any]:
        path = self._blobs / digest
        hint = "`root.sha256` is the digest of an image's manifest, which index.json names"
        content = read_input(path, limit_bytes=_LIMIT_BYTES, at=self._at, hint=hint)
        if hashlib.sha256(content).hexdigest() != digest:
            raise self._wrong(digest, "was changed: its bytes have another digest")
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(content)
            if isinstance(value, dict):
                return value
        raise self._wrong(digest, "is not a manifest or configuration")

    def _offered(self, index: dict[str, Any]) -> str | None:
        manifests = index["manifests"] if isinstance(index["manifests"], list) else []
        for manifest in manifests:
            platform = manifest.get("platform") if isinstance(manifest, dict) else None
            if isinstance(platform, dict) and platform.get("architecture") == self._architecture:
                with contextlib.suppress(ManifestError):
                    digest = _hex(manifest)
                    return f"write the digest of its image for {self._architecture} in its place: {digest}"
        return None

    def _wrong(self, digest: str, problem: str, hint: str | None = None) -> EnvbuildError:
        return RequestError(f"`{self._blobs / digest}` {problem}", at=self._at, hint=hint or _WRITTEN)
