"""`envbuild worker`: one task of a submission; jobs of `build --submit` and `test --submit` run it."""

from __future__ import annotations

from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_messages
from envbuild.cli.progress import session


def command(
    level: Annotated[int, typer.Argument(metavar="LEVEL", min=0, help="Level of the task.")],
    first: Annotated[
        int, typer.Argument(metavar="FIRST", min=0, help="Number of the array's first task in the level.")
    ],
    store: options.Store = None,
    upstream: options.Upstream = None,
    apptainer: options.Apptainer = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
) -> None:
    """Do the task of the store's submission that this job of Slurm is."""
    with session(store=store, apptainer=apptainer, recipes=recipes, site=site) as settings:
        result = workflows.worker.run_task(level, first, upstream or (), settings)
    print_messages(f"{result.outcome}: {result.text}", problem=result.code != 0)
    raise typer.Exit(result.code)
