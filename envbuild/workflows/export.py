"""Export: an image in the forms of other runtimes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from envbuild.errors import MachineError, RequestError, raise_all
from envbuild.events import Emit, task
from envbuild.image import shifter
from envbuild.image.compose import check_target
from envbuild.image.file import ImageFile
from envbuild.image.model import Manifest
from envbuild.image.oci import LAYOUT, oci_image, write_archive
from envbuild.image.verify import check_image_is_whole
from envbuild.squashfs.format import Compressor
from envbuild.system import squashfs
from envbuild.system.files import atomic_file, copy_range, sha256, write_atomically
from envbuild.system.leftovers import private_work
from envbuild.workflows.arguments import check_outside_store
from envbuild.workflows.choices import ExportFormat

_SQUASHFS_MAGIC = b"hsqs"
_MODE = 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An exported image."""

    format: str
    files: tuple[Path, ...]
    size_bytes: int
    """Of all files together."""
    identity: str
    """Shifter's id, the digest of the OCI manifest, or ``sha256:…`` of the squashfs."""


def export_image(image: Path, form: ExportFormat, path: Path, emit: Emit) -> Written:
    """Write an image in another form to a file, or for ``shifter`` a directory.

    The same image gives the same bytes. RequestError: it is not an image of envbuild's, has changed since it
    was written, or cannot be written in this form. MachineError: there is no space, or the disk fails.
    """
    with ImageFile.open(image) as opened:
        return _export(opened, form, path, emit)


def _export(image: ImageFile, form: ExportFormat, path: Path, emit: Emit) -> Written:
    """Write an image in another form; a change of it meanwhile leaves none."""
    manifest = image.manifest
    _check_place(form, path, image.path)
    check_outside_store(path)
    if form == "shifter":
        _check_variables(manifest)
    size = image.size_bytes
    with task(emit, "verify", f"read {image.path.name}", total_bytes=size) as reading:
        check_image_is_whole(image, advanced=reading.advance)
    with (
        task(emit, form, f"write {path.name}", total_bytes=size) as writing,
        _writing(path),
    ):
        if form == "oci":
            return _write_oci(image, path, writing.advance)
        if form == "shifter":
            return _write_shifter(image, path, writing.advance)
        if form == "squashfs":
            _copy(image, path, writing.advance)
            return _written(form, path)
        assert_never(form)


def _check_place(form: ExportFormat, path: Path, image: Path) -> None:
    if form == "shifter":
        _check_directory(path)
        return
    magic = {"oci": LAYOUT.encode(), "squashfs": _SQUASHFS_MAGIC}[form]
    hint = "name another file with -o PATH"
    check_target(path, keep=(image,), is_one=lambda place: begins(place, magic), what=form, hint=hint)


def _check_directory(path: Path) -> None:
    hint = "name a directory for the two files of Shifter"
    if str(path) == "-":
        raise RequestError("an image is not written to standard output", hint=hint)
    if path.exists() and not path.is_dir():
        raise RequestError(f"`{path}` is not a directory", hint=hint)
    there = path if path.is_dir() else path.parent
    if not there.is_dir():
        raise RequestError(f"there is no directory `{there}` for `{path.name}`", hint=hint)
    if not os.access(there, os.W_OK | os.X_OK):
        raise RequestError(f"nothing can be written in `{there}`", hint=hint)


def begins(path: Path, magic: bytes) -> bool:
    """Whether a file is empty or begins with some bytes."""
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
        image_of_oci = oci_image(image, work, advanced=advanced)
        write_archive(part, image_of_oci)
        image.check_unchanged()
        part.replace(path)
    return _written("oci", path, identity=image_of_oci.digest)


def _written(form: ExportFormat, *files: Path, identity: str = "") -> Written:
    return Written(
        format=form,
        files=files,
        size_bytes=sum(path.stat().st_size for path in files),
        identity=identity or f"sha256:{sha256(files[0])}",
    )


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"`{target}` cannot be written: {error.strerror or error}",
            hint="free some space, or name another place; the image itself is untouched",
        ) from error
