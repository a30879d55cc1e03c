"""`envbuild sbom`: the bill of materials of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_message
from envbuild.cli.progress import session


def command(
    image: options.Image,
    output: Annotated[
        Path | None, options.output("FILE", "Write it here; to standard output if absent.")
    ] = None,
) -> None:
    """Show the bill of materials of an image: every package with version, licence and hash, as CycloneDX."""
    with session() as settings:
        text = workflows.sbom.write_sbom(workflows.images.image_file(image, settings), output)
    if output is None:
        print_data(text)
    else:
        print_message(f"{output}: written")
