"""Writes an image in the forms of other runtimes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.errors import RequestError, raise_all
from envbuild.image import shifter
from envbuild.image.compose import check_target
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.oci import LAYOUT, layer_contents, oci_image, pack_layer, write_archive
from envbuild.squashfs.format import Compressor
from envbuild.system import squashfs
from envbuild.system.files import atomic_file, copy_range, sha256, write_atomically
from envbuild.system.leftovers import private_work

_SQUASHFS_MAGIC = b"hsqs"
_MODE = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An exported image."""

    format: str
    files: tuple[Path, ...]
    size_bytes: int
    """Size of all files together."""
    identity: str
    """Shifter's id, the digest of the OCI manifest, or ``sha256:…`` of the squashfs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of images: its check before anything is read, and its writer."""

    check: Callable[[Manifest, Path, Path], None]
    """Raises a RequestError if an image (its manifest and path) cannot be written to a path."""
    write: Callable[[ImageFile, Path, Callable[[int], None]], Written]
    """Writes an image to a path; called with the number of bytes of each part that is read."""
    times: int
    """How many times the size of an image writing it needs beside the path, as an estimate if it is not 1."""


def _check_file(_manifest: Manifest, image: Path, path: Path, *, form: str, magic: bytes) -> None:
    check_target(
        path,
        keep=(image,),
        is_one=lambda file: is_empty_or_starts_with(file, magic),
        what=form,
        hint="name another file with -o PATH",
    )


def _check_shifter(manifest: Manifest, _image: Path, path: Path) -> None:
    _check_directory(path)
    _check_variables(manifest)


def _check_directory(path: Path) -> None:
    hint = "name a directory for the two files of Shifter"
    if str(path) == "-":
        raise RequestError("an image is not written to standard output", hint=hint)
    if path.exists() and not path.is_dir():
        raise RequestError(f"`{path}` is not a directory", hint=hint)
    directory = path if path.is_dir() else path.parent
    if not directory.is_dir():
        raise RequestError(f"there is no directory `{directory}` for `{path.name}`", hint=hint)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{directory}`", hint=hint)


def is_empty_or_starts_with(path: Path, magic: bytes) -> bool:
    """Whether a file is empty or is_empty_or_starts_with with some bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(len(magic))
    except OSError:
        return False
    return not start or start == magic


def _check_variables(manifest: Manifest) -> None:
    raise_all(
        [
            RequestError(
                f"Shifter would misread the variable {name}: {why}",
                hint="change the variable in the spec, and build again",
            )
            for name, why in shifter.misread(manifest.environment)
        ]
    )


def _write_squashfs(image: ImageFile, path: Path, advanced: Callable[[int], None]) -> Written:
    _copy(image, path, advanced)
    return _written("squashfs", path)


def _copy(image: ImageFile, path: Path, advanced: Callable[[int], None]) -> None:
    """Copy the file system of an image unchanged."""
    root = image.root
    with atomic_file(path, mode=_MODE, check=image.check_unchanged) as file:
        copy_range(image.file.fileno(), root.offset, root.size_bytes, file, 0, advanced)


def _write_shifter(image: ImageFile, path: Path, advanced: Callable[[int], None]) -> Written:
    path.mkdir(exist_ok=True)
    with private_work(path, before=".export-") as work:
        part = work / "image.squashfs"
        if image.root.superblock.compressor is Compressor.GZIP:
            _copy(image, part, advanced)
        else:
            # Shifter mounts images with the kernel of the node, which may lack zstd.
            squashfs.recompress_gzip(image.program_path, part, offset=image.root.offset)
        image.check_unchanged()
        name = shifter.image_id(part)
        target = path / f"{name}.squashfs"
        part.replace(target)
    # Last: a gateway that sees the metadata also sees the image.
    metadata = path / f"{name}.meta"
    write_atomically(metadata, shifter.metadata_text(image.manifest.environment).encode())
    return _written("shifter", target, metadata, identity=name)


def _write_oci(image: ImageFile, path: Path, advanced: Callable[[int], None]) -> Written:
    with private_work(path.absolute().parent, before=".export-") as work:
        part = work / "archive"
        contents = layer_contents(image)
        layers = [pack_layer(image.root, content, work, advanced=advanced) for content in contents]
        image_of_oci = oci_image(image, contents, layers)
        write_archive(part, image_of_oci, work)
        image.check_unchanged()
        part.replace(path)
    return _written("oci", path, identity=image_of_oci.digest)


def _written(form: str, *files: Path, identity: str = "") -> Written:
    return Written(
        format=form,
        files=files,
        size_bytes=sum(path.stat().st_size for path in files),
        identity=identity or f"sha256:{sha256(files[0])}",
    )


FORMS: Mapping[str, Form] = {
    "oci": Form(check=partial(_check_file, form="oci", magic=LAYOUT.encode()), write=_write_oci, times=3),
    "shifter": Form(check=_check_shifter, write=_write_shifter, times=6),
    "squashfs": Form(
        check=partial(_check_file, form="squashfs", magic=_SQUASHFS_MAGIC), write=_write_squashfs, times=1
    ),
}
"""The forms by their names for `envbuild export`."""
