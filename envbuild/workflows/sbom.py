"""Sbom: the bill of materials of an image."""

from __future__ import annotations

from pathlib import Path

from envbuild.image.compose import check_target, read_sbom
from envbuild.image.file import ImageFile
from envbuild.image.sbom import sbom_of_additions
from envbuild.image.verify import check_around
from envbuild.system.files import open_regular, write_atomically
from envbuild.workflows.arguments import check_outside_store


def write_sbom(path: Path, output: Path | None) -> str:
    """Return an image's bill of materials, CycloneDX as JSON, and write it to `output` if given.

    That of an extended image of another tool lists what was added to it. RequestError: it is neither that
    nor an image of envbuild's, or was changed or damaged; or the output cannot be written, or is a file of
    another kind.
    """
    if output is not None:
        hint = "name another file with -o FILE"
        check_target(output, keep=[path], is_one=_looks_like_bill, what="bill of materials", hint=hint)
        check_outside_store(output, hint=hint)
    with ImageFile.open(path) as image:
        if not image.built_by_envbuild and image.note is not None:
            bill = sbom_of_additions(image.note)
        else:
            check_around(image)
            bill = read_sbom(image)
    if output is not None:
        write_atomically(output, bill)
    return bill.decode()


def _looks_like_bill(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(1024)
    return not start or b'"bomFormat"' in start
