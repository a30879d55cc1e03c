"""From a base's finished root to the files that hold it, each with its digest.

Source: OCI image specification 1.1 (image layout, manifest, configuration).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.lock.model import RootPin
from envbuild.spec.asked import Asked
from envbuild.system.files import is_directory, read_input, sha256

_LIMIT_BYTES = 4 << 20
_MAX_LAYERS = 512
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LAYERS = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar|docker\.image\.rootfs\.diff\.tar)(?:[.+](?:gzip|zstd))?"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


def root_pins(asked: Asked) -> tuple[RootPin, ...]:
    """Return the files of a base's finished root, from bottom to top; none for a base of packages.

    Raises
    ------
    RequestError
        It is not there, is another than the definition says, or for another machine.
    """
    root, place = asked.base.root, asked.root_place
    if root is None or place is None:
        return ()
    at = Location(path=asked.base_path)
    if root.kind == "oci":
        if not is_directory(place):
            raise RequestError(
                f"there is no directory `{place}`",
                at=at,
                hint="mend `place` under `root` of the base image: it names an OCI layout",
            )
        return tuple(_Layout(place, at, asked.architecture).layers(root.sha256))
    try:
        is_file = place.is_file()
    except OSError as error:
        raise RequestError(f"`{place}` cannot be read: {error.strerror}", at=at, hint=_READABLE) from None
    if not is_file:
        raise RequestError(
            f"there is no file `{place}`",
            at=at,
            hint="mend `place` under `root` of the base image, or put the file there",
        )
    if not _NAME.fullmatch(place.name):
        raise RequestError(
            f"`{place.name}` cannot be locked", at=at, hint="call it by letters, digits, `.`, `_` and `-`"
        )
    found = _digest(place, at)
    if found != root.sha256:
        raise RequestError(
            f"`{place}` is another file: its sha256 is {found}, and the definition says {root.sha256}",
            at=at,
            hint="if it is the right one, put its sha256 into the definition",
        )
    return (RootPin(kind=root.kind, file=place.name, size_bytes=place.stat().st_size, sha256=found),)


def place_of(asked: Asked, pin: RootPin) -> Path:
    """Return where the definition of a base says that a file of its root lies."""
    place = asked.root_place
    if place is None:
        raise AssertionError("a base with pins of a root has one")
    return place / "blobs" / "sha256" / pin.sha256 if pin.kind == "oci" else place


def _digest(path: Path, at: Location) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise RequestError(f"`{path}` cannot be read: {error.strerror}", at=at, hint=_READABLE) from None


_WRITTEN = "name a layout as `skopeo copy docker://IMAGE oci:DIR` or `podman save` writes it, whole"
_READABLE = "see that it may be read by you; `root` of the base image names it"


class _Layout:
    """The directory of an OCI image layout; what it says is believed by its digests alone."""

    def __init__(self, place: Path, at: Location, architecture: str) -> None:
        self._blobs = place / "blobs" / "sha256"
        self._at = at
        self._architecture = architecture

    def layers(self, manifest: str) -> Iterator[RootPin]:
        found = self._json(manifest)
        if "manifests" in found:
            raise self._wrong(manifest, "is an index of several images", self._offered(found))
        config = self._json(self._hex(found.get("config")))
        if config.get("architecture") != self._architecture or config.get("os") != "linux":
            what = f"{config.get('os')}/{config.get('architecture')}"
            raise self._wrong(manifest, f"is for {what}", f"this machine is linux/{self._architecture}")
        layers = found.get("layers")
        if not isinstance(layers, list) or not 0 < len(layers) <= _MAX_LAYERS:
            raise self._wrong(manifest, "names no layers")
        for layer in layers:
            digest, size = self._hex(layer), layer.get("size")
            if not _LAYERS.fullmatch(str(layer.get("mediaType"))) or type(size) is not int or size < 0:
                raise self._wrong(digest, "is no layer of a kind that is known")
            yield RootPin(kind="oci", file=f"{digest}.layer", size_bytes=size, sha256=digest)

    def _json(self, digest: str) -> dict[str, Any]:
        path = self._blobs / digest
        hint = "`root.sha256` is the digest of an image's manifest, which index.json names"
        content = read_input(path, limit_bytes=_LIMIT_BYTES, at=self._at, hint=hint)
        if hashlib.sha256(content).hexdigest() != digest:
            raise self._wrong(digest, "was changed: its bytes have another digest")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._wrong(digest, "is no manifest or configuration")
        return found

    def _hex(self, descriptor: object) -> str:
        digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if match is None:
            raise RequestError(f"a manifest in `{self._blobs}` names no sha256", at=self._at, hint=_WRITTEN)
        return match[1]

    def _offered(self, index: dict[str, Any]) -> str | None:
        """Return what an index has for this machine."""
        manifests = index["manifests"] if isinstance(index["manifests"], list) else []
        for one in manifests:
            platform = one.get("platform") if isinstance(one, dict) else None
            if isinstance(platform, dict) and platform.get("architecture") == self._architecture:
                return (
                    f"write the digest of its image for {self._architecture} in its place: {self._hex(one)}"
                )
        return None

    def _wrong(self, digest: str, problem: str, hint: str | None = None) -> EnvbuildError:
        return RequestError(f"`{self._blobs / digest}` {problem}", at=self._at, hint=hint or _WRITTEN)
