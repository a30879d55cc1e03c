"""`envbuild recipes`: what a spec can choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from envbuild.cli.options import JsonOption, RecipesOption, put
from envbuild.errors import raise_all

app = typer.Typer(help="What a spec can choose from.", no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
def ls(recipes: RecipesOption = None, json: JsonOption = False) -> None:
    """List all recipes: name, kind, preferred version, summary."""
    from envbuild.workflows.recipes import list_recipes  # noqa: PLC0415  # start-up time

    listing = list_recipes(recipes or ())
    if json or listing.recipes:
        put(listing.to_json() if json else listing.to_text())
    # What can be read is listed all the same.
    raise_all(listing.mistakes)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The recipe's name.", show_default=False)],
    recipes: RecipesOption = None,
    json: JsonOption = False,
) -> None:
    """Show a recipe's versions, variants, needs, jobs, commands and variables."""
    from envbuild.workflows.recipes import show_recipe  # noqa: PLC0415  # start-up time

    shown = show_recipe(name, recipes or ())
    put(shown.to_json() if json else shown.to_text())


@app.callback()
def _group() -> None:
    """Show what a spec can choose from."""
