"""List the recipes that a spec can name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.spec.recipe import Recipe
from envbuild.workflows.inputs import find_catalog, read_each, read_recipe


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
