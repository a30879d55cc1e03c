"""`envbuild sbom`: the bill of materials of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError


def command(
    image: options.Image,
    root: options.ModuleRoot = None,
    output: Annotated[
        Path | None, options.output("FILE", "Write it here; to standard output if absent.")
    ] = None,
) -> None:
    """Show the bill of materials of an image: every package with version, licence and hash, as CycloneDX."""
    with session() as settings:
        named = workflows.images.named_images(settings, [image], root=root)
        if named.many:
            hint = "`envbuild status --package NAME` asks many"
            raise RequestError("a bill of materials is of one image", hint=hint)
        text = workflows.sbom.write_sbom(named.only.file(settings), output)
    if output is None:
        print_data(text)
    else:
        print_message(f"{output}: written")
