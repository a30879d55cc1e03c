"""`envbuild export`: an image in the forms of other runtimes."""

from __future__ import annotations

import enum
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.options import ImageArgument, JsonOption
from envbuild.cli.streams import put, say


class Format(enum.Enum):
    """Forms of an image beside the SIF."""

    SQUASHFS = "squashfs"
    SHIFTER = "shifter"
    OCI = "oci"


def command(
    image: ImageArgument,
    form: Annotated[Format, typer.Option("--format", help="What to write.", show_default=False)],
    output: Annotated[
        str,  # a path would lose a slash at its end
        typer.Option(
            "-o", "--output", metavar="PATH", help="The file; for shifter a directory.", show_default=False
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Write an image in another form: for Charliecloud and enroot, for Shifter, or for registries."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.export import export_image  # noqa: PLC0415
    from envbuild.workflows.places import file_named  # noqa: PLC0415

    place = Path(output) if form is Format.SHIFTER else file_named(output)
    with listening(json=json) as emit:
        written = export_image(image, form.value, place, emit)
    if json:
        put(dumps(written.to_data(), indent=2))
    files = ", ".join(str(path) for path in written.files)
    say(f"{files}: written ({written.format}, {written.size_bytes / 1e6:.1f} MB, {written.identity[:19]})")
