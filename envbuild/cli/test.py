"""`envbuild test`: prove that the ranks in an image really talk."""

from __future__ import annotations

import enum
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
    seconds,
)
from envbuild.cli.streams import put, say_lines


class Starts(enum.Enum):
    """What starts the ranks."""

    IMAGE = "image"
    SRUN = "srun"


def command(
    image: ImageArgument,
    ranks: Annotated[
        Optional[int],  # noqa: UP045  # typer reads it at run time
        typer.Option(
            "--ranks",
            metavar="N",
            min=2,
            max=4096,
            help="Processes to start [under srun what the job says, else the image].",
        ),
    ] = None,
    timeout: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--timeout", metavar="TIME", help="Limit for each mini job (90s, 5min) [what the image says]."
        ),
    ] = None,
    report: Annotated[
        Optional[str],  # noqa: UP045  # a path would lose a slash at its end
        typer.Option("--report", metavar="FILE.json", help="Write the report here as well."),
    ] = None,
    launcher: Annotated[
        Starts,
        typer.Option("--launcher", help="Start the ranks by the image's own mpiexec, or by Slurm's srun."),
    ] = Starts.IMAGE,
    mpi: MpiOption = Mpi.IMAGE,
    fabric: FabricOption = Mpi.IMAGE,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Run the image's mini jobs and judge them; exit code 4 when anything failed."""
    from envbuild.check.report import render_lines, to_json  # noqa: PLC0415  # start-up time
    from envbuild.cli.listen import listening  # noqa: PLC0415
    from envbuild.workflows.places import file_named  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415
    from envbuild.workflows.test import test_image, write_report  # noqa: PLC0415

    place = None if report is None else file_named(report)
    timeout_s = None if timeout is None else seconds(timeout)
    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=site, emit=emit)
        result = test_image(
            image,
            ranks=ranks,
            timeout_s=timeout_s,
            settings=settings,
            report=place,
            lend=lending(mpi, fabric),
            srun=launcher is Starts.SRUN,
        )
    if json:
        put(to_json(result))
    say_lines(render_lines(result))
    if place is not None:
        write_report(place, result)
    raise typer.Exit(0 if result.passed else 4)
