"""The shipped recipes, which many tests of a file read, and none changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from envbuild.inputs.catalog import Catalog, find_catalog
from envbuild.workflows.recipes import RecipeListing, list_recipes


def list_recipes_once(recipes: Sequence[Path] = ()) -> RecipeListing:
    """Read all recipes as `list_recipes`, once for each list of directories."""
    return _list(find_catalog(recipes), tuple(recipes))


@cache
def _list(catalog: Catalog, recipes: tuple[Path, ...]) -> RecipeListing:  # a key
    return list_recipes(recipes)
