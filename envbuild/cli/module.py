"""`envbuild module`: put an image behind `module load`."""

from __future__ import annotations

import json as json_text
import shlex
from pathlib import Path
from typing import Annotated

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
    put,
    say,
)
from envbuild.errors import RequestError

app = typer.Typer(help="Put images behind `module load`.", no_args_is_help=True, rich_markup_mode=None)


@app.command("install")
def install(
    image: ImageArgument,
    root: Annotated[
        str,  # a path that is empty would become the working directory
        typer.Option(
            "--root", metavar="DIR", help="Where modules and images are installed.", show_default=False
        ),
    ],
    thin: Annotated[
        bool, typer.Option("--thin", help="Start from the store's layers instead of a copy.")
    ] = False,
    mpi: MpiOption = Mpi.IMAGE,
    fabric: FabricOption = Mpi.IMAGE,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Install an image, wrappers for its commands, and an Lmod modulefile."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.module import install_module  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    if not root:
        raise RequestError("the root for modules is empty", hint="name a directory with --root DIR")
    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=site, emit=emit)
        installed = install_module(
            image,
            root=Path(root),
            thin=thin,
            settings=settings,
            lend=lending(mpi, fabric),
        )
    if json:
        put(json_text.dumps(installed.to_data()))
    say(f"{installed.modulefile}: installed")
    use, load = shlex.quote(str(installed.modulefiles)), shlex.quote(installed.module)
    say(f"next: module use {use} && module load {load}")


@app.callback()
def _group() -> None:
    """Put images behind `module load`."""
