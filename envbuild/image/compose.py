"""Composes an image from finished layers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.image.file import ImageFile
from envbuild.image.model import FileSystem, ImageLayer, Manifest
from envbuild.image.packages import read_packages
from envbuild.image.sbom import sbom
from envbuild.image.sif import HINT_REBUILD, LOCK, PLAN, SBOM, looks_like_sif, write_sif
from envbuild.lock.model import Lock
from envbuild.lock.text import dump
from envbuild.squashfs.format import SquashfsError
from envbuild.squashfs.layers import layer_file_systems
from envbuild.squashfs.reader import Squashfs
from envbuild.squashfs.splice import Part, Splice, digest_of_tables, splice, whole


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


def compose(
    path: Path,
    layers: Sequence[FinishedLayer],
    *,
    manifest: Manifest,
    lock: Lock,
    plan: str,
    note: bytes = b"",
    advanced: Callable[[int], None],
) -> Manifest:
    """Write an image of layers, given from bottom to top: all of it, or nothing; return its manifest.

    `manifest` has no file system yet; `plan` is its canonical text; `note` says what was added to a finished
    image, empty if nothing was. `advanced` is called with the number of bytes of each part that was copied.
    RequestError: the image cannot be written at `path`. MachineError: a layer cannot be read or is damaged,
    or the disk is full or fails.
    """
    with layer_file_systems({layer.name: layer.blob for layer in layers}) as inputs:
        _check_tables(layers, inputs)
        spliced = splice(inputs)
        described = tuple(map(_described_layer, layers, spliced.parts, spliced.offsets))
        manifest = manifest.model_copy(update={"file_system": _file_system(spliced, described)})
        bill = sbom(lock, read_packages(list(inputs.values())), imported=manifest.imported_layers)
        data = {LOCK: dump(lock).encode(), PLAN: plan.encode(), SBOM: bill}
        write_sif(path, manifest, spliced, data, note=note, advanced=advanced)
    return manifest


def compose_on(
    path: Path,
    image: ImageFile,
    layers: Sequence[FinishedLayer],
    order: Sequence[str],
    *,
    manifest: Manifest,
    lock: Lock,
    plan: str,
    note: bytes,
    hidden: Collection[str],
    advanced: Callable[[int], None],
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write an image of another one's layers, whose data is copied, and of new `layers`, as `compose` does.

    `image` is of ours: its manifest says where its layers lie. `order` names all layers from bottom to top;
    those of the other image that it lacks are left out. `hidden` are paths of the other image that are not
    shown, and `note` says what was added. An error of `check`, which is called last, leaves `path` as it is.
    Raises as `compose`; RequestError if the other image is damaged.
    """
    system, squashfs = image.manifest.file_system, image.root
    kept = {layer.name: layer for layer in system.layers} if system else {}
    new = {layer.name: layer for layer in layers}
    with layer_file_systems({name: new[name].blob for name in new}) as files:
        _check_tables(layers, files)
        parts = [
            whole(files[name])
            if name in new
            else Part(squashfs=squashfs, offset=kept[name].offset, size=kept[name].size_bytes)
            for name in order
        ]
        inputs = {image.path.name: squashfs, **{name: files[name] for name in order if name in new}}
        spliced = splice(inputs, parts=parts, hidden=hidden)
        described = tuple(
            _described_layer(new[name], part, offset)
            if name in new
            else kept[name].model_copy(update={"offset": offset})
            for name, part, offset in zip(order, spliced.parts, spliced.offsets, strict=True)
        )
        manifest = manifest.model_copy(update={"file_system": _file_system(spliced, described)})
        bill = sbom(lock, read_packages(list(inputs.values())), imported=manifest.imported_layers)
        data = {LOCK: dump(lock).encode(), PLAN: plan.encode(), SBOM: bill}
        write_sif(path, manifest, spliced, data, note=note, advanced=advanced, check=check)
    return manifest


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
    bill = image.data(SBOM)
    try:
        json.loads(bill)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the bill of materials in `{image.path.name}` is damaged",
            at=Location(path=image.path),
            hint=HINT_REBUILD,
        ) from error
    return bill


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
    shown = "an image" if not hint else f"a {what}"
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
        replaced = any(other.exists() and path.samefile(other) for other in keep)
        if replaced or not path.is_file() or not is_one(path):
            raise RequestError(f"`{path}` is there already and is no {what}: it is left alone", hint=hint)
