"""`envbuild check`: what an image would load and whether it fits its site, known without running it."""

from __future__ import annotations

import enum
from typing import Annotated, Optional

import typer

from envbuild.cli.options import (
    FabricOption,
    ImageArgument,
    JsonOption,
    Mpi,
    MpiOption,
    SiteOption,
    StoreOption,
    lending,
)
from envbuild.cli.streams import put, say_lines


class Runtime(enum.Enum):
    """Runtimes that do to an image what Apptainer does not."""

    SHIFTER = "shifter"


def command(
    image: ImageArgument,
    site: SiteOption = None,
    mpi: MpiOption = Mpi.IMAGE,
    fabric: FabricOption = Mpi.IMAGE,
    runtime: Annotated[
        Optional[Runtime],  # noqa: UP045  # typer reads it at run time
        typer.Option(
            "--runtime", help="Tell also what this runtime hides, replaces or drops.", show_default=False
        ),
    ] = None,
    srun: Annotated[
        bool, typer.Option("--srun", help="Ask this machine's srun which PMI it offers, too.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Simulate the loader over the image's layers, and judge what fits; exit code 4 for anything wrong."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.check import check_image  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=None, recipes=None, site=site, emit=emit)
        lend, shifter = lending(mpi, fabric), runtime is not None
        checked = check_image(image, settings, lend=lend, shifter=shifter, srun=srun)
    if json:
        put(checked.to_json())
    say_lines(checked.to_text())
    raise typer.Exit(0 if checked.passed else 4)
