"""`envbuild module`: put an image behind `module load`."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.options import ApptainerOption, ImageArgument, JsonOption, SiteOption, StoreOption, put, say

app = typer.Typer(help="Put images behind `module load`.", no_args_is_help=True, rich_markup_mode=None)


@app.command("install")
def install(
    image: ImageArgument,
    root: Annotated[
        Path,
        typer.Option(
            "--root", metavar="DIR", help="Where modules and images are installed.", show_default=False
        ),
    ],
    thin: Annotated[
        bool, typer.Option("--thin", help="Start from the store's layers instead of a copy.")
    ] = False,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Install an image, wrappers for its commands, and an Lmod modulefile."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.module import install_module  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=site, emit=emit)
        installed = install_module(image, root=root, thin=thin, settings=settings)
    if json:
        put(json_text.dumps(installed.to_data()))
    say(f"{installed.modulefile}: installed")
    say(f"next: module use {installed.modulefiles} && module load {installed.module}")


@app.callback()
def _group() -> None:
    """Put images behind `module load`."""
