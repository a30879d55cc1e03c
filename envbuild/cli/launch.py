"""`envbuild launch`: start a program on the ranks of an image."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Optional

import typer

from envbuild.cli.options import (
    ApptainerOption,
    FabricOption,
    ImageArgument,
    JsonOption,
    Mpi,
    MpiOption,
    SiteOption,
    StoreOption,
    lending,
)
from envbuild.cli.streams import put
from envbuild.errors import RequestError


def command(
    image: ImageArgument,
    words: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer reads it at run time
        typer.Argument(metavar="COMMAND", help="What each rank runs.", show_default=False),
    ] = None,
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "-n",
            "--ranks",
            metavar="N",
            min=1,
            max=1_000_000,
            help="Processes to start [what the allocation says, else 1].",
        ),
    ] = None,
    mpi: MpiOption = Mpi.IMAGE,
    fabric: FabricOption = Mpi.IMAGE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the line, and start nothing.")] = False,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Start a command on an image's ranks: by srun, the host's mpiexec or the image's."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.launch import launch, launch_line  # noqa: PLC0415  # start-up time
    from envbuild.workflows.settings import Settings  # noqa: PLC0415
    from envbuild.workflows.words import quoted  # noqa: PLC0415

    if not words:
        raise RequestError(
            "there is no command to start", hint="envbuild launch IMAGE.sif -- python train.py"
        )
    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=site, emit=emit)
        line = launch_line(
            image,
            words,
            ranks=ranks,
            lend=lending(mpi, fabric),
            settings=settings,
        )
    if dry_run:
        put(json_text.dumps(line) if json else " ".join(map(quoted, line)))
    else:
        launch(line)
