"""`envbuild export`: an image in the forms of other runtimes."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from envbuild.cli.options import ImageArgument, JsonOption
from envbuild.cli.streams import put, say


class Format(enum.Enum):
    """Forms of an image beside the SIF in layers."""

    SQUASHFS = "squashfs"
    SHIFTER = "shifter"
    SIF_FLAT = "sif-flat"
    OCI = "oci"
    DEF = "def"


class Compression(enum.Enum):
    """What a squashfs is compressed by."""

    GZIP = "gzip"
    ZSTD = "zstd"


def command(
    image: ImageArgument,
    form: Annotated[Format, typer.Option("--format", help="What to write.", show_default=False)],
    output: Annotated[
        str,  # a path would lose a slash at its end
        typer.Option(
            "-o", "--output", metavar="PATH", help="The file; for shifter a directory.", show_default=False
        ),
    ],
    compression: Annotated[
        Optional[Compression],  # noqa: UP045  # typer reads it at run time
        typer.Option(
            "--compression", help="Of the squashfs [gzip for shifter, else zstd].", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write an image in another form: for Charliecloud, Shifter, sites without overlay, or to audit."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.export import export_one, to_json  # noqa: PLC0415
    from envbuild.workflows.places import file_named  # noqa: PLC0415

    place = Path(output) if form is Format.SHIFTER else file_named(output)
    with listening(json=json) as emit:
        written = export_one(
            image, form.value, place, emit, compression=compression.value if compression else None
        )
    if json:
        put(to_json([written]))
    say(written.to_text())
