"""Images of registries as bases: which image a name is, its layers in the cache, and its facts.

The facts are kept by digest, so that an image is read once. Source: OCI image specification 1.1 (index,
manifest, configuration), OCI distribution specification 1.1.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild.digests import canonical_json
from envbuild.errors import Location, RequestError, pluralize
from envbuild.events import Note, task
from envbuild.lock.model import ImagePin, Lock, RootPin
from envbuild.resolve.context import ResolveContext, cannot_write
from envbuild.resolve.image_facts import read_facts
from envbuild.resolve.obtain import local_copy
from envbuild.resolve.roots import ManifestError, check_platform, config_digest, layers_of
from envbuild.spec.base import BaseImage, ImageFacts
from envbuild.spec.fields import Format
from envbuild.spec.model import Digest, Model
from envbuild.spec.yamlfile import shorten
from envbuild.system.files import atomic_file, copy, free_bytes, make_directory, read_small, write_at
from envbuild.system.network import RequestLimits
from envbuild.system.process import thread_pool
from envbuild.system.references import MANIFEST_LIMIT_BYTES, Reference
from envbuild.system.registry import Repository

_TRANSFERS = 4
_RECORDS = "images"
_RECORD_LIMIT_BYTES = 4 << 20
_CONFIGS = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
_HINT_OFFLINE = "make the lock on a machine that reaches the registry; it is enough here"
_HINT_IMAGE = "name an image of podman or Docker; `envbuild pull` takes one that `push` sent"


class _Layer(Model):
    """A layer in a record."""

    digest: Digest
    size_bytes: int
    media_type: str


class _Record(Model):
    """An image for one platform, as the cache keeps it."""

    format: Format = 1
    digest: Digest
    layers: tuple[_Layer, ...]
    facts: ImageFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBase:
    """An image of a registry as base."""

    pin: ImagePin
    layers: tuple[RootPin, ...]
    """From bottom to top."""
    facts: ImageFacts
    definition: BaseImage


def image_of_lock(lock: Lock) -> ImageBase | None:
    """Return the image of a registry that is the base of a lock; None if it has another base."""
    pin, facts = lock.base_image, lock.image_facts
    if pin is None or facts is None:
        return None
    definition = facts.definition(pin.image, pin.digest, lock.architecture)
    return ImageBase(pin=pin, layers=lock.base_root, facts=facts, definition=definition)


def resolve_image(
    image: str,
    architecture: str,
    context: ResolveContext,
    *,
    at: Location | None = None,
    previous: ImageBase | None = None,
    limits: RequestLimits | None = None,
) -> ImageBase:
    """Return the image that a name is now for an architecture, with its facts.

    If these are not known yet, its layers are fetched into the cache; with a `previous` image of this name
    they are not: its facts stand for those of the new one. RequestError: it cannot be a base, or it is not
    known and `context.offline` is set. MachineError: its registry refuses it or does not answer.
    """
    reference = Reference.parse(image)
    if reference.digest and (record := _known(reference.digest, architecture, context)):
        return _base(image, architecture, record)
    if context.offline:
        problem = f"offline: the registry cannot be asked for `{image}`"
        raise RequestError(problem, at=at, hint=_HINT_OFFLINE)
    try:
        record = _asked(image, architecture, context, at=at, previous=previous, limits=limits)
    except ManifestError as error:
        raise RequestError(f"`{image}` {error.problem}", at=at, hint=error.hint or _HINT_IMAGE) from None
    if previous is None or record.facts is not previous.facts:
        context.emit(Note(text=f"base: {image} is {record.facts.summary}"))
    return _base(image, architecture, record)


def _asked(
    image: str,
    architecture: str,
    context: ResolveContext,
    *,
    at: Location | None,
    previous: ImageBase | None,
    limits: RequestLimits | None,
) -> _Record:
    """Return the record of an image as its registry has it now; raises as the caller, or ManifestError."""
    reference = Reference.parse(image)
    with Repository(reference, limits=limits) as repository:
        digest, manifest = _manifest(repository, architecture)
        record = _known(digest, architecture, context)
        if record is None:
            if manifest is None:
                manifest = repository.manifest(digest).data
            layers = _layers(repository, manifest, architecture)
            if previous is not None:
                return _record(digest, layers, previous.facts)
            record = _record(digest, layers, _read(layers, repository, context, at))
            _keep(record, digest, architecture, context)
    if reference.digest:
        # Perhaps of an index.
        _keep(record, reference.digest, architecture, context)
    return record


def fetch_layers(pins: Sequence[RootPin], repository: Repository, context: ResolveContext) -> None:
    """Put layers of an image into the cache, each checked by its digest; say first how large they are.

    What a run that breaks off leaves is continued by the next. MachineError: the registry does not give them,
    or there is no room.
    """
    files = context.files
    make_directory(files.root)
    size_bytes = sum(pin.size_bytes for pin in pins)
    files.check_room(sum(files.missing_bytes(pin) for pin in pins))
    sizes = f"{size_bytes / 1e6:.0f} MB, {free_bytes(files.root) / 1e6:.0f} MB are free in the store"
    context.emit(
        Note(text=f"fetch {pluralize(len(pins), 'layer')} of {repository.reference} into the store: {sizes}")
    )
    title = f"fetch {repository.reference}"
    with task(context.emit, "fetch:image", title, total_bytes=size_bytes) as running:

        def fetch(pin: RootPin) -> None:
            def write(part: Path) -> None:
                reported = 0
                for length in repository.pull_blob(f"sha256:{pin.sha256}", pin.size_bytes, part):
                    running.advance(max(length - reported, 0))
                    reported = max(length, reported)

            files.add_continued(pin, write)

        with thread_pool(_TRANSFERS) as pool:
            # The largest first: a big one at the end would leave the other threads idle.
            list(pool.map(fetch, sorted(pins, key=lambda pin: (-pin.size_bytes, pin.sha256))))
        running.detail = f"{size_bytes / 1e6:.0f} MB"


def _manifest(repository: Repository, architecture: str) -> tuple[str, Mapping[str, Any] | None]:
    """Return the digest of the manifest for an architecture, and the manifest unless an index names it."""
    document = repository.manifest(repository.reference.version)
    if "manifests" not in document.data:
        return document.digest, document.data
    entries = document.data["manifests"]
    offered = []
    for entry in entries if isinstance(entries, list) else ():
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if not isinstance(platform, dict) or not isinstance(name := platform.get("architecture"), str):
            continue
        if platform.get("os") == "linux" and name == architecture:
            return f"sha256:{config_digest({'config': entry})}", None
        # Of notes on images, which stand beside them, it is `unknown`.
        if name != "unknown":
            offered.append(shorten(f"{platform.get('os')}/{name}"))
    listed = ", ".join(sorted(set(offered))) or "no platform that it names"
    raise ManifestError(f"is not made for linux/{architecture}", f"it is made for {listed}")


def _layers(repository: Repository, manifest: Mapping[str, Any], architecture: str) -> tuple[RootPin, ...]:
    """Return the layers of an image; ManifestError if it is not one for an architecture."""
    if manifest.get("schemaVersion") == 1 or "fsLayers" in manifest:
        problem = "has a manifest of schema 1, of which no layer has a size"
        raise ManifestError(problem, "push it again with a current podman or Docker")
    if "manifests" in manifest:
        raise ManifestError("is an index within an index")
    described = manifest.get("config")
    config = described if isinstance(described, dict) else {}
    kind, size_bytes = config.get("mediaType"), config.get("size")
    if kind not in _CONFIGS:
        raise ManifestError(f"is not an image: its configuration is `{shorten(str(kind))}`")
    digest = config_digest(manifest)
    if type(size_bytes) is not int or not 0 <= size_bytes <= MANIFEST_LIMIT_BYTES:
        raise ManifestError(f"has a configuration of more than {MANIFEST_LIMIT_BYTES >> 20} MiB")
    try:
        configuration = json.loads(repository.pull_bytes(f"sha256:{digest}", size_bytes))
    except (ValueError, RecursionError):
        configuration = None
    if not isinstance(configuration, dict):
        raise ManifestError("has a configuration that is not JSON")
    check_platform(configuration, architecture)
    return layers_of(manifest)


def _read(
    layers: Sequence[RootPin], repository: Repository, context: ResolveContext, at: Location | None
) -> ImageFacts:
    """Fetch the layers of an image that are not here, and read its facts."""
    files, name = context.files, str(repository.reference)
    missing = []
    for pin in dict.fromkeys(layers):
        path = local_copy(pin, context)
        if path is None:
            missing.append(pin)
        elif path != files.path(pin):
            with files.adding(pin) as part:
                copy(path, part)
    if missing:
        fetch_layers(missing, repository, context)
    total_bytes = sum(pin.size_bytes for pin in layers)
    with task(context.emit, "read:image", f"read {name}", total_bytes=total_bytes) as reading:
        return read_facts([files.path(pin) for pin in layers], name, at, reading.advance)


def _record(digest: str, layers: Sequence[RootPin], facts: ImageFacts) -> _Record:
    return _Record(
        digest=digest,
        layers=tuple(
            _Layer(digest=f"sha256:{pin.sha256}", size_bytes=pin.size_bytes, media_type=pin.media_type)
            for pin in layers
        ),
        facts=facts,
    )


def _base(image: str, architecture: str, record: _Record) -> ImageBase:
    facts = record.facts
    layers = tuple(
        RootPin(
            kind="oci",
            file=f"{layer.digest.removeprefix('sha256:')}.layer",
            size_bytes=layer.size_bytes,
            sha256=layer.digest.removeprefix("sha256:"),
            media_type=layer.media_type,
        )
        for layer in record.layers
    )
    pin = ImagePin(
        image=image,
        digest=record.digest,
        distribution=facts.distribution,
        suite=facts.suite,
        version=facts.version,
        brings=facts.brings,
        packages=facts.packages,
    )
    definition = facts.definition(image, record.digest, architecture)
    return ImageBase(pin=pin, layers=layers, facts=facts, definition=definition)


# The records


def _path(digest: str, architecture: str, context: ResolveContext) -> Path:
    return context.files.root / _RECORDS / f"{digest.removeprefix('sha256:')}-{architecture}.json"


def _known(digest: str, architecture: str, context: ResolveContext) -> _Record | None:
    """Return what the cache knows of a manifest or index; None if it was never read here."""
    with contextlib.suppress(OSError, ValidationError, ValueError):
        text = read_small(_path(digest, architecture, context), limit_bytes=_RECORD_LIMIT_BYTES)
        return _Record.model_validate_json(text)
    return None


def _keep(record: _Record, digest: str, architecture: str, context: ResolveContext) -> None:
    path = _path(digest, architecture, context)
    try:
        make_directory(path.parent)
        with atomic_file(path, mode=0o644) as file:
            write_at(file, canonical_json(record.model_dump(mode="json")).encode(), 0)
    except OSError as error:
        raise cannot_write(path, error) from error
