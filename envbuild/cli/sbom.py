"""`envbuild sbom`: what an image is made of, for other programs."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from envbuild.cli.options import ImageArgument
from envbuild.cli.streams import put, say


def command(
    image: ImageArgument,
    output: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time; a path would lose a slash at its end
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write it here; to standard output if absent.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the bill of materials of an image: every package with version, licence and hash, as CycloneDX."""
    from envbuild.workflows.places import file_named  # noqa: PLC0415  # start-up time
    from envbuild.workflows.sbom import write_sbom  # noqa: PLC0415

    text = write_sbom(image, None if output is None else file_named(output))
    if output is None:
        put(text)
    else:
        say(f"{output}: written")
