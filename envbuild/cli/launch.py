"""`envbuild launch`: start a program on the ranks of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.quoting import shell_line


def command(
    image: options.Image,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="The program that each rank runs, and its arguments [those that the spec states].",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            metavar="N",
            min=1,
            max=1_000_000,
            help="Processes to start [what spec or allocation state, else 1].",
        ),
    ] = None,
    launcher: options.Launcher = None,
    no_torch_env: Annotated[
        bool,
        typer.Option(
            "--no-torch-env", help="Leave RANK, WORLD_SIZE, MASTER_ADDR and their like unset for PyTorch."
        ),
    ] = False,
    observe: Annotated[
        Path | None,
        typer.Option(
            "--observe",
            metavar="DIR",
            help="Record there what ranks, nodes and GPUs use, each second; `envbuild observe` shows it.",
        ),
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(
            "--time", metavar="TIME", parser=options.read_timeout, help="Record no longer: 90s, 2min, 1h."
        ),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            "--stage",
            metavar="DIR",
            help="Start a copy of the image there, made once on each node; `auto`: where the site says.",
        ),
    ] = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    dry_run: options.DryRun = False,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Start a command on an image's ranks: by srun, the host's mpiexec or the image's."""
    if time is not None and observe is None:
        raise RequestError("--time limits what --observe records", hint="add --observe DIR, or leave it out")
    observation = workflows.observe.Observation(observe, time) if observe is not None else None
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        line = workflows.launch.launch_line(
            workflows.images.image_file(image, settings),
            words or [],
            ranks=ranks,
            launcher_name=launcher,
            torch_env=not no_torch_env,
            from_host=options.host_libraries(mpi, fabric),
            settings=settings,
            dry_run=dry_run,
            observation=observation,
            stage=stage,
        )
    if dry_run:
        print_json(line) if json else print_data(shell_line(line))
    else:
        workflows.launch.launch(line, observed=observation is not None)
