"""Which variant of a recipe meets the accelerator that a spec asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.spec.asked import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice, EnvSpec
from envbuild.spec.recipe import Recipe, Variant

# A recipe's word for what no accelerator matters to.
ANY = "any"


def variant_for(accelerator: Choice, recipe: Recipe) -> tuple[str, Variant] | None:
    """Return the first variant of a recipe for an accelerator, with its name.

    ``cuda-13.0`` is for CUDA 13.0, ``cuda`` does not say for which, ``any``
    serves every accelerator, and so does an MPI's ``cpu``.
    """
    for name, variant in recipe.variants.items():
        family, _, version = name.partition("-")
        if family == accelerator.name and (not version or accelerator.admits(version)):
            return name, variant
    others = [ANY, "cpu"] if recipe.kind == "mpi" else [ANY]
    return next(((name, recipe.variants[name]) for name in others if name in recipe.variants), None)


def proven(recipe: Recipe, variant: Variant) -> tuple[str, ...]:
    """Return the versions of a recipe that were proven for a variant, the preferred first."""
    return variant.versions or recipe.versions


def accelerator_mistakes(spec: Loaded[EnvSpec], at: Location, recipe: Recipe) -> Iterator[EnvbuildError]:
    """Tell where a recipe has nothing for the accelerator of a spec.

    Parameters
    ----------
    at : Location
        Where the spec names the recipe.
    """
    wanted = spec.value.accelerator
    if ("accelerator",) in spec.places:
        at = spec.at("accelerator")
    found = variant_for(wanted, recipe)
    if found is None:
        if recipe.kind == "mpi" or not recipe.variants:
            return  # the recipe's own mistake, told with it
        shown = f"`{wanted.name}` {wanted.constraint}".rstrip()
        problem = f"the recipe `{recipe.name}` has no variant for {shown}"
        yield RequestError(problem, at=at, hint=f"it has: {', '.join(sorted(recipe.variants))}")
    elif wanted.constraint and found[0] == wanted.name:
        problem = f"the recipe `{recipe.name}` does not say which version of `{wanted.name}` it is for"
        yield RequestError(problem, at=at, hint=f"write `accelerator: {wanted.name}`")


def mixed_accelerators(
    spec: Loaded[EnvSpec], located: Sequence[tuple[ChosenRecipe, tuple[str | int, ...]]]
) -> Iterator[EnvbuildError]:
    """Tell recipes whose variants are for different major versions: one process loads one CUDA.

    Parameters
    ----------
    located : sequence of (ChosenRecipe, steps)
        The recipes and where the spec names them.
    """
    first: dict[str, ChosenRecipe] = {}
    for chosen, loc in located:
        family, _, version = chosen.variant_name.partition("-")
        if not version:
            continue
        other = first.setdefault(family, chosen)
        if other.variant_name.partition(".")[0] != chosen.variant_name.partition(".")[0]:
            problem = (
                f"the recipe `{other.recipe.name}` is for {other.variant_name}, "
                f"and `{chosen.recipe.name}` for {chosen.variant_name}"
            )
            both = [name for name in other.recipe.variants if name in chosen.recipe.variants]
            shared = next((name.partition("-")[2] for name in both if name.startswith(f"{family}-")), "")
            hint = f"both have `accelerator: {family}@{shared}`" if shared else "make an image of each"
            yield RequestError(problem, at=spec.at(*loc), hint=hint)
