"""`envbuild exec` and `envbuild shell`: a program or a shell in an image, without a module."""

from __future__ import annotations

from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.quoting import shell_line


def exec_command(
    image: options.Image,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The program, and its arguments.")
    ] = None,
    dry_run: options.DryRun = False,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Run a program in an image: with its environment, your files, and the GPUs of this machine."""
    if not words:
        raise RequestError("there is no command to run", hint="envbuild exec IMAGE.sif -- python train.py")
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        image = workflows.images.image_file(image, settings)
        line = workflows.launch.program_line(image, words, settings)
    if dry_run:
        print_json(line) if json else print_data(shell_line(line))
    else:
        workflows.launch.launch(line)


def shell_command(
    image: options.Image,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
) -> None:
    """Open a shell in an image, whose prompt names it."""
    with session(store=store, apptainer=apptainer, site=site) as settings:
        image = workflows.images.image_file(image, settings)
        line = workflows.launch.shell_line(image, settings)
    workflows.launch.launch(line)
