"""`envbuild recipes`: what a spec can choose from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import completion
from envbuild.cli.options import ApptainerOption, JsonOption, RecipesOption
from envbuild.cli.output import print_data, print_messages
from envbuild.cli.progress import session
from envbuild.errors import raise_all

app = typer.Typer(help="What a spec can choose from.", no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
def ls(recipes: RecipesOption = None, json: JsonOption = False) -> None:
    """List all recipes: name, kind, preferred version, summary."""
    listing = workflows.recipes.list_recipes(recipes or ())
    if json or listing.recipes:
        print_data(listing.to_json() if json else listing.to_text())
    # What can be read is listed all the same.
    raise_all(listing.mistakes)


@app.command("show")
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The recipe's name.", show_default=False, autocompletion=completion.recipes
        ),
    ],
    recipes: RecipesOption = None,
    json: JsonOption = False,
) -> None:
    """Show a recipe's versions, variants, needs, jobs, commands and variables."""
    shown = workflows.recipes.show_recipe(name, recipes or ())
    print_data(shown.to_json() if json else shown.to_text())


@app.command("check")
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The recipe's name.", show_default=False, autocompletion=completion.recipes
        ),
    ],
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            metavar="IMAGE.sif",
            help="Run its negative controls in this image, which was built with it.",
            show_default=False,
        ),
    ] = None,
    recipes: RecipesOption = None,
    apptainer: ApptainerOption = None,
    json: JsonOption = False,
) -> None:
    """Hold a recipe to the rules: owners, oracles, controls, README, and what it requires.

    Exit code 0 where it keeps them and the judge saw every spoiled job, 2 where
    it breaks one (all are told) or the image is not of this recipe, 4 where the
    judge missed a spoiled job, and 5 where nothing here can run the image.
    """
    with session(json=json, apptainer=apptainer, recipes=recipes) as settings:
        checked = workflows.recipe_check.check_recipe(name, settings, image=image)
    print_data(checked.to_json() if json else checked.to_text())
    raise typer.Exit(0 if checked.passed else 4)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The recipe's name.", show_default=False)],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="The version to begin with.", show_default=False)
    ],
    distribution: Annotated[
        str | None,
        typer.Option(
            "--distribution",
            metavar="NAME",
            help="What it installs from the package index [the recipe's name].",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="The module that must import [the distribution's name].",
            show_default=False,
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where recipes lie; made if it is not there.")
    ] = Path("recipes"),
) -> None:
    """Write the skeleton of a framework's recipe, with a mini job, its controls and a spec to try it."""
    print_messages(
        workflows.recipe_new.new_recipe(name, version, directory, distribution=distribution, module=module)
    )
