"""`envbuild kernel`: an image behind a Jupyter kernel."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError

app = typer.Typer(help="Run Jupyter kernels in images.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("install")
def install(
    what: Annotated[
        str, typer.Argument(metavar="IMAGE|MODULE", help="An image, or with --root a module NAME/VERSION.")
    ],
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Where the module is installed.")
    ] = None,
    prefix: Annotated[
        Path | None,
        typer.Option("--prefix", metavar="DIR", help="Write below DIR/share/jupyter, for a shared Jupyter."),
    ] = None,
    user: Annotated[bool, typer.Option("--user", help="Write to your own kernels [default].")] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the kernel [the image's name and version]."),
    ] = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Write a Jupyter kernelspec whose kernel runs in an image."""
    if prefix is not None and user:
        raise RequestError("--prefix and --user name two places", hint="leave one of them out")
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        if root is None:
            workflows.images.check_is_a_file(Path(what))
        kernel = workflows.kernel.write_kernel(what, root=root, prefix=prefix, name=name, settings=settings)
    if json:
        print_json(asdict(kernel))
    print_message(f"{kernel.directory}: installed")
    print_message(f"next: choose `{kernel.name}` in Jupyter, or `jupyter console --kernel {kernel.name}`")
