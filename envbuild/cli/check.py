"""`envbuild check`: what an image would load and whether it fits its site, known without running it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli.options import (
    FabricOption,
    ImageArgument,
    JsonOption,
    MpiOption,
    SiteOption,
    StoreOption,
    lending,
)
from envbuild.cli.output import print_data, print_messages
from envbuild.cli.progress import session


def command(
    image: ImageArgument,
    site: SiteOption = None,
    mpi: MpiOption = "image",
    fabric: FabricOption = "image",
    runtime: Annotated[
        Literal["shifter"] | None,
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
    with session(json=json, store=store, site=site) as settings:
        lend, shifter = lending(mpi, fabric), runtime is not None
        checked = workflows.check.check_image(image, settings, lend=lend, shifter=shifter, srun=srun)
    if json:
        print_data(checked.to_json())
    print_messages(checked.to_text())
    raise typer.Exit(0 if checked.passed else 4)
