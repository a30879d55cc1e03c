"""What tests ask of an image by its path: each opens the image for one question."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envbuild.errors import RequestError
from envbuild.image import compare, compose, verify
from envbuild.image.extension import ExtensionNote
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.sif import SifFile
from envbuild.lock.model import Lock
from envbuild.preflight import scan
from envbuild.squashfs.reader import Entry, Squashfs
from envbuild.store.store import Store


def read_sif(path: Path) -> SifFile:
    with ImageFile.open(path) as image:
        if image.sif is None:
            raise RequestError("it is a bare squashfs", hint="name a SIF")
        return image.sif


def read_manifest(path: Path) -> Manifest:
    with ImageFile.open(path) as image:
        return image.manifest


def read_data(path: Path, name: str) -> bytes:
    with ImageFile.open(path) as image:
        return image.data(name)


def read_note(path: Path) -> ExtensionNote | None:
    with ImageFile.open(path) as image:
        return image.note


def read_sbom(path: Path) -> bytes:
    with ImageFile.open(path) as image:
        return compose.read_sbom(image)


@contextlib.contextmanager
def file_system(path: Path) -> Iterator[Squashfs]:
    with ImageFile.open(path) as image:
        yield image.root


def image_entries(path: Path) -> dict[str, Entry]:
    with file_system(path) as squashfs:
        return {entry.path: entry for entry in squashfs.walk()}


def verify_image(path: Path, *, advanced: Callable[[int], None] = lambda _: None) -> tuple[str, ...]:
    with ImageFile.open(path) as image:
        return verify.verify_image(image, advanced=advanced)


def check_image_is_whole(path: Path) -> None:
    with ImageFile.open(path) as image:
        verify.check_image_is_whole(image)


def tables_are_right(path: Path) -> bool:
    with ImageFile.open(path) as image:
        return verify.tables_are_right(image)


def compare_images(first: Path, second: Path) -> compare.Comparison:
    with ImageFile.open(first) as left, ImageFile.open(second) as right:
        return compare.compare_images(left, right)


def compose_layers(
    path: Path,
    layers: Sequence[compose.FinishedLayer],
    *,
    manifest: Manifest,
    lock: Lock,
    plan: str,
    note: bytes = b"",
    facts: bytes = b"",
    on: Path | None = None,
) -> None:
    """Write an image of layers, over nothing or over the layers of an image of ours, with these facts."""
    with contextlib.ExitStack() as opened:
        bottom = opened.enter_context(ImageFile.open(on)) if on is not None else None
        kept = bottom.manifest.file_system if bottom is not None else None
        names = [layer.name for layer in kept.layers] if kept is not None else []
        stack = compose.Stack(
            layers=layers,
            order=[*names, *(layer.name for layer in layers)],
            provenance=compose.Provenance(manifest=manifest, lock=lock, plan=plan, note=note),
            bottom=bottom,
        )
        compose.compose(path, stack, describe=lambda *_: facts)


def scan_image(path: Path, store: Store, *, changed: tuple[str, ...] | None = None) -> scan.ImageScan:
    with ImageFile.open(path) as image:
        return scan.scan_image(image, store, changed=changed)
