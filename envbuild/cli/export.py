"""`envbuild export`: an image in the forms of other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message
from envbuild.cli.progress import session
from envbuild.workflows.choices import ExportFormat


def command(
    image: options.Image,
    form: Annotated[ExportFormat, typer.Option("--format", help="What to write.")],
    output: Annotated[
        str,  # a path would lose a slash at its end
        typer.Option("-o", "--output", metavar="PATH", help="The file; for shifter a directory."),
    ],
    json: options.Json = False,
) -> None:
    """Write an image in another form: for Charliecloud and enroot, for Shifter, or for registries."""
    place = Path(output) if form == "shifter" else workflows.arguments.output_path(output)
    with session(json=json) as settings:
        written = workflows.export.export_image(image, form, place, settings.emit)
    if json:
        print_json(written)
    files = ", ".join(str(path) for path in written.files)
    print_message(
        f"{files}: written ({written.format}, {written.size_bytes / 1e6:.1f} MB, {written.identity[:19]})"
    )
