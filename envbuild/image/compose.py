"""Composes an image: layers over one another, or over an image that is kept, in a frame."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.image.file import ImageFile
from envbuild.image.layout import Layout, built_layout, kept_layout, write_image
from envbuild.image.model import FileSystem, ImageLayer, Manifest
from envbuild.image.packages import read_packages
from envbuild.image.sbom import sbom
from envbuild.image.sif import HINT_REBUILD, LOCK, PLAN, SBOM, looks_like_sif
from envbuild.lock.model import Lock
from envbuild.lock.text import dump
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.layers import layer_file_systems
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import Part, Splice, all_data, digest_of_tables, splice


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLayer:
    """A layer that an image is composed of."""

    name: str
    blob: Path
    """Path of its squashfs."""
    digest: str
    data: str
    tables: str
    """``sha256:…`` of the squashfs, of its data, and of its superblock and tables."""
    imported: bool = False
    """Whether it comes from an untrusted account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The data that an image carries if envbuild built it."""

    manifest: Manifest
    """Without its file system."""
    lock: Lock
    plan: str
    """As canonical JSON."""
    note: bytes = b""
    """The record of what was added to a finished image; empty if nothing was."""
    facts: bytes | None = None
    """Facts that are taken over from an image, empty for none; None: they are read from the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """An image that is to be written."""

    layers: Sequence[FinishedLayer]
    """New layers, from bottom to top."""
    order: Sequence[str]
    """Names of all layers from bottom to top; those of `bottom` that are not named are left out."""
    provenance: Provenance | None
    """None: everything around the file system of `bottom` is kept."""
    bottom: ImageFile | None = None
    """An image whose data is copied as it is; `layers` lie on it."""
    hidden: Collection[str] = ()
    """Paths of `bottom` that are not shown."""
    unchanged: Collection[str] = ()
    """Files of `bottom` that stay, though layers have them, too."""


def compose(
    path: Path,
    stack: Stack,
    *,
    describe: Callable[[Manifest, Squashfs], bytes] | None = None,
    advanced: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
    create: Callable[[Path], bool] = lambda _: False,
) -> Manifest | None:
    """Write an image, in place of an earlier one: all of it, or nothing; return its manifest, if it has one.

    `describe` returns the facts that an image of ours carries, of its file system as it was written. It must
    depend on nothing else: the same stack gives the same bytes. `advanced` is called with the number of bytes
    of each part that was copied; `check` and `create` are as in `atomic_file`.
    RequestError: the image cannot be written at `path`, or `bottom` is damaged. MachineError: a layer cannot
    be read or is damaged, or the disk is full or fails.
    """
    with layer_file_systems({layer.name: layer.blob for layer in stack.layers}) as files:
        _check_tables(stack.layers, files)
        inputs = dict(files)
        if stack.bottom is not None:
            inputs = {stack.bottom.path.name: stack.bottom.root, **files}
        if stack.provenance is not None:
            layout, spliced, manifest = _built(stack, stack.provenance, files, inputs, describe)
            write_image(path, layout, spliced, advanced=advanced, check=check, create=create)
            return manifest
        if stack.bottom is None:
            raise ValueError("there is neither an image below nor data for a new one")
        spliced = splice(inputs, hidden=stack.hidden, unchanged=stack.unchanged, keep_directories=True)
        layout = kept_layout(stack.bottom, spliced)
        write_image(path, layout, spliced, advanced=advanced, check=check, create=create)
        return None


def _built(
    stack: Stack,
    provenance: Provenance,
    files: Mapping[str, Squashfs],
    inputs: Mapping[str, Squashfs],
    describe: Callable[[Manifest, Squashfs], bytes] | None,
) -> tuple[Layout, Splice, Manifest]:
    """Return an image of ours, ready to be written; its manifest says where each layer lies."""
    new, kept = {layer.name: layer for layer in stack.layers}, _layers_of(stack.bottom)
    parts = [
        all_data(files[name]) if name in new else _part(stack.bottom, kept[name]) for name in stack.order
    ]
    spliced = splice(inputs, parts=parts, hidden=stack.hidden)
    layers = tuple(
        _described_layer(new[name], part, offset)
        if name in new
        else kept[name].model_copy(update={"offset": offset})
        for name, part, offset in zip(stack.order, spliced.parts, spliced.offsets, strict=True)
    )
    manifest = provenance.manifest.model_copy(update={"file_system": _file_system(spliced, layers)})
    bill = sbom(provenance.lock, read_packages(list(inputs.values())), imported=manifest.imported_layers)
    data = {LOCK: dump(provenance.lock).encode(), PLAN: provenance.plan.encode(), SBOM: bill}
    of_root = partial(describe, manifest) if describe is not None else None
    layout = built_layout(manifest, data, spliced, note=provenance.note, describe=of_root)
    return layout, spliced, manifest


def _layers_of(image: ImageFile | None) -> dict[str, ImageLayer]:
    """Return the layers of an image by name; none of an image of another tool."""
    if image is None or not image.built_by_envbuild or image.manifest.file_system is None:
        return {}
    return {layer.name: layer for layer in image.manifest.file_system.layers}


def _part(image: ImageFile | None, layer: ImageLayer) -> Part:
    if image is None:
        raise ValueError(f"layer {layer.name} is neither new nor kept")
    return Part(squashfs=image.root, offset=layer.offset, size=layer.size_bytes)


def _check_tables(layers: Sequence[FinishedLayer], inputs: Mapping[str, Squashfs]) -> None:
    """Check that layers have the tables that they were published with.

    Damaged data of a layer are detected in the image, under the layer's name; damaged tables would give a
    wrong tree.
    """
    for layer in layers:
        superblock, tables = inputs[layer.name].raw_tables()
        if digest_of_tables(superblock, tables) != layer.tables:
            problem = f"{layer.name} has other tables than it was published with"
            raise SquashfsError(problem, inputs[layer.name])


def _file_system(spliced: Splice, layers: tuple[ImageLayer, ...]) -> FileSystem:
    return FileSystem(
        size_bytes=spliced.size_bytes,
        layers=layers,
        tables_offset=spliced.tables_offset,
        tables=spliced.tables_digest,
    )


def _described_layer(layer: FinishedLayer, part: Part, offset: int) -> ImageLayer:
    return ImageLayer(
        name=layer.name,
        digest=layer.digest,
        offset=offset,
        size_bytes=part.size,
        data=layer.data,
        imported=layer.imported,
    )


def read_sbom(image: ImageFile) -> bytes:
    """Return the bill of materials of an image; RequestError if it is missing or damaged."""
    sbom_document(image)
    return image.data(SBOM)


def sbom_document(image: ImageFile) -> object:
    """Return the bill of materials of an image as data; raises as `read_sbom`."""
    try:
        document: object = json.loads(image.data(SBOM))
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the bill of materials in `{image.path.name}` is damaged",
            at=Location(path=image.path),
            hint=HINT_REBUILD,
        ) from error
    return document


def check_target(
    path: Path,
    *,
    keep: Sequence[Path],
    is_one: Callable[[Path], bool] = looks_like_sif,
    what: str = "image",
    hint: str = "",
) -> None:
    """Check, before any work is done, that a file can be written at a path.

    RequestError: it is a directory, its directory cannot be written, it is a file of another kind than `what`
    (see `is_one`), or one of `keep`, which must never be replaced. `hint` says how to name another path; by
    default with -o.
    """
    shown = f"{'an' if what[0] in 'aeio' else 'a'} {what}"
    hint = hint or "name another file with -o " + ("IMAGE.sif" if what == "image" else "PATH")
    directory = path.parent
    if str(path) == "-":
        raise RequestError(f"{shown} is not written to standard output", hint=hint)
    if path.is_dir() or not path.name:
        raise RequestError(f"`{path}` is a directory, not a file", hint=hint)
    if not directory.is_dir():
        raise RequestError(
            f"there is no directory `{directory}` for `{path.name}`", hint="make it, or " + hint
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{directory}`", hint=hint)
    if path.exists():
        if any(other.exists() and path.samefile(other) for other in keep):
            problem = f"`{path}` is an input of this command; it was not overwritten"
            raise RequestError(problem, hint=hint)
        if not path.is_file() or not is_one(path):
            problem = f"`{path}` already exists and is not {shown}; it was not overwritten"
            raise RequestError(problem, hint=hint)
