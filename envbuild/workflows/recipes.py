"""Recipes: which there are, and what one of them says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.spec.model import Prepend
from envbuild.spec.recipe import BaseRequirement, Recipe, VerifyJob
from envbuild.workflows.inputs import find_catalog, read_recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All recipes that a spec could name.

    Attributes
    ----------
    recipes : tuple of Recipe
        Those that can be read, by name.
    mistakes : tuple of EnvbuildError
        What is wrong with the others.
    """

    recipes: tuple[Recipe, ...]
    mistakes: tuple[EnvbuildError, ...] = ()

    def to_json(self) -> str:
        """Return name, kind, preferred version, summary and whether it is frozen, as a JSON list."""
        return json.dumps(
            [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "version": each.versions[0],
                    "summary": each.summary,
                    "frozen": bool(each.frozen),
                }
                for each in self.recipes
            ],
            indent=2,
        )

    def to_text(self) -> str:
        """Return a line for each, in columns; empty where there are none."""
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) if rows else 0 for column in range(3)]
        return "\n".join(
            "  ".join((*(f"{row[at]:<{width}}" for at, width in enumerate(widths)), row[3])) for row in rows
        )

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                each.name,
                each.kind,
                each.versions[0],
                f"{each.summary} (frozen)" if each.frozen else each.summary,
            )
            for each in self.recipes
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecipe:
    """One recipe for people and programs.

    Attributes
    ----------
    path : Path
        The file that says so: the first of this name that was found.
    """

    recipe: Recipe
    path: Path

    def to_json(self) -> str:
        """Return what the recipe says, and where it stands, as JSON."""
        data: dict[str, Any] = self.recipe.model_dump(mode="json", exclude={"schema_", "requires", "verify"})
        data["requires"] = [str(choice) for choice in self.recipe.requires]
        data["jobs"] = [job.model_dump(mode="json") for job in self.recipe.verify]
        return json.dumps({**data, "path": str(self.path)}, indent=2, sort_keys=True)

    def to_text(self) -> str:
        """Return it as lines of ``name: value``."""
        rows = ((f"{name}:" if name else "", value) for name, value in self._rows() if value)
        return "\n".join(f"{name:<13}{value}" for name, value in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        recipe = self.recipe
        yield "recipe", recipe.name
        yield "kind", recipe.kind
        yield "summary", recipe.summary
        yield "homepage", recipe.homepage
        yield "frozen", recipe.frozen
        yield "file", str(self.path)
        yield "versions", ", ".join(recipe.versions)
        for name, variant in recipe.variants.items():
            origins = f" (from {', '.join((*variant.origins, 'pypi'))})" if variant.origins else ""
            over = f", over {', '.join(variant.backends)}" if variant.backends else ""
            installed = ", ".join(variant.requirements) or "nothing to install"
            only = f" ({', '.join(variant.versions)} only)" if variant.versions else ""
            untried = f"; untried: {variant.untried}" if variant.untried else ""
            yield "variant", f"{name}: {installed}{origins}{over}{only}{untried}"
        yield "owns", ", ".join(recipe.owns)
        yield "requires", ", ".join(map(str, recipe.requires))
        yield "one of", ", ".join(recipe.requires_one_of)
        yield "needs", "an MPI in the spec" if recipe.needs_mpi else ""
        yield "base", _base(recipe.base)
        if recipe.source is not None:
            against = f", against {', '.join(recipe.source.against)}" if recipe.source.against else ""
            yield "built", f"{recipe.source.distribution} from its source{against}"
        yield "system", ", ".join(recipe.system) + (", seen by Python" if recipe.debian_python else "")
        yield "python", ", ".join(recipe.python)
        for job in recipe.verify:
            carried = f" ({', '.join(job.variants)})" if job.variants else ""
            by = f", started by {job.launcher}" if job.launcher != "mpiexec" else ""
            yield "job", f"{job.id}: {job.title}{by}{carried}"
            for kind, values in _oracles(job):
                yield "", f"  {kind}: {values}"
        yield "commands", ", ".join(recipe.commands)
        for path, target in recipe.links.items():
            yield "link", f"{path} -> {target}"
        yield "lacks", ", ".join(recipe.lacks)
        for variable, value in recipe.environment.items():
            sign, text = ("+=", value.prepend) if isinstance(value, Prepend) else ("=", value)
            yield "environment", f"{variable} {sign} {text}"


def _oracles(job: VerifyJob) -> Iterator[tuple[str, str]]:
    """Yield what a job's reports are held to, each kind with its values."""
    if job.expect:
        yield "exact", ", ".join(f"{name} = {wanted}" for name, wanted in job.expect.items())
    if job.same_on_all_ranks:
        yield "equal on all ranks", ", ".join(job.same_on_all_ranks)
    if job.compare_with_single:
        limits = (f"{name} (<= {limit:.0e})" for name, limit in job.compare_with_single.items())
        yield "as on one rank", ", ".join(limits)
    if job.compare_with_reported:
        pairs = job.compare_with_reported.items()
        told = (
            f"{name} as {other} (<= {limit:.0e})" for name, others in pairs for other, limit in others.items()
        )
        yield "on each rank", ", ".join(told)
    if job.says:
        yield "each rank says", ", ".join(job.says)


def _base(needs: BaseRequirement) -> str:
    parts = (
        f"Python {needs.python}" if needs.python else "",
        f"suite {' or '.join(needs.suites)}" if needs.suites else "",
        f"glibc >={needs.glibc}" if needs.glibc else "",
    )
    return ", ".join(part for part in parts if part)


def list_recipes(recipes: Sequence[Path] = ()) -> Listing:
    """Read every recipe that there is.

    Parameters
    ----------
    recipes : sequence of Path
        Directories to look in before all others.

    Raises
    ------
    RequestError
        A directory that was given is not there.
    """
    found, mistakes = [], []
    for name in find_catalog(recipes).recipe_names():
        try:
            found.append(read_recipe(name, recipes=recipes).loaded.value)
        except EnvbuildError as error:
            mistakes.append(error)
    return Listing(recipes=tuple(found), mistakes=tuple(mistakes))


def show_recipe(name: str, recipes: Sequence[Path] = ()) -> ShownRecipe:
    """Read one recipe.

    Raises
    ------
    RequestError, ManyErrors
        There is none of this name, or all mistakes of its file.
    """
    loaded = read_recipe(name, recipes=recipes).loaded
    return ShownRecipe(recipe=loaded.value, path=loaded.path)
