"""Export: an image in the forms of other runtimes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.events import Emit, task
from envbuild.image.export import FORMS, Written
from envbuild.image.file import ImageFile
from envbuild.image.verify import check_image_is_whole
from envbuild.workflows.arguments import check_outside_store, check_room
from envbuild.workflows.choices import ExportFormat


def export_image(image: Path, form: ExportFormat, path: Path, emit: Emit) -> Written:
    """Write an image in another form to a file, or for ``shifter`` a directory.

    The same image gives the same bytes. RequestError: it is not an image of envbuild's, has changed since it
    was written, or cannot be written in this form. MachineError: there is no space, or the disk fails.
    """
    with ImageFile.open(image) as opened:
        return _export(opened, form, path, emit)


def _export(image: ImageFile, form_name: ExportFormat, path: Path, emit: Emit) -> Written:
    """Write an image in another form; a change of it meanwhile leaves none."""
    form, size_bytes = FORMS[form_name], image.size_bytes
    form.check(image.manifest, image.path, path)
    check_outside_store(path)
    check_room(
        path.parent,
        form.times * size_bytes,
        emit,
        least=None if form.times == 1 else 0,
        copied_from=image.path,
        hint="free some space, or name another path with -o",
    )
    with task(emit, "verify", f"read {image.path.name}", total_bytes=size_bytes) as reading:
        check_image_is_whole(image, advanced=reading.advance)
    with task(emit, form_name, f"write {path.name}", total_bytes=size_bytes) as writing, _writing(path):
        return form.write(image, path, writing.advance)


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"`{target}` cannot be written: {error.strerror or error}",
            hint="free some space, or name another path; the image itself is untouched",
        ) from error
