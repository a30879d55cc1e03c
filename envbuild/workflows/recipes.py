"""List the recipes that a spec can name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.version import Version

from envbuild.errors import EnvbuildError
from envbuild.inputs.catalog import find_catalog, read_each, read_recipe
from envbuild.spec.recipe import Recipe
from envbuild.spec.recipe_rules import RecipeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeListing:
    """All recipes that a spec can name."""

    recipes: tuple[Recipe, ...]
    """Recipes without errors, by name."""
    errors: tuple[EnvbuildError, ...] = ()
    """Errors of the others."""


def list_recipes(recipes: Sequence[Path] = ()) -> RecipeListing:
    """Read all recipes; the directories `recipes` are searched first."""
    names = find_catalog(recipes).recipe_names()
    sources, errors = read_each(names, partial(read_recipe, recipes=recipes))
    return RecipeListing(recipes=tuple(source.loaded.value for source in sources), errors=tuple(errors))


def show_recipe(name: str, recipes: Sequence[Path] = ()) -> RecipeSource:
    """Return a recipe, as a spec that names it would read it."""
    return read_recipe(name, recipes=recipes)


def newest_first(versions: Sequence[str]) -> str:
    """Return versions in order, with a mark at the preferred one, the first, unless it is the newest."""
    newest, *older = sorted(versions, key=Version, reverse=True)
    return ", ".join(
        [newest, *(f"{version} [preferred]" if version == versions[0] else version for version in older)]
    )
