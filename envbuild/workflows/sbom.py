"""Sbom: the bill of materials of an image."""

from __future__ import annotations

from pathlib import Path

from envbuild.image.compose import bill_of_image
from envbuild.system.files import write_atomically


def write_sbom(image: Path, output: Path | None) -> str:
    """Return an image's bill of materials, CycloneDX as JSON; written to a file if one is named.

    Raises
    ------
    RequestError
        It is no image of ours, or the file cannot be written.
    MachineError
        The disk is full.
    """
    bill = bill_of_image(image)
    if output is not None:
        write_atomically(output, bill)
    return bill.decode()
