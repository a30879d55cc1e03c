"""Which variant of a recipe meets the accelerator that a spec asks for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from packaging.version import Version

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.spec.asked import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice, EnvSpec
from envbuild.spec.recipe import Recipe, Variant

# A recipe's word for what no accelerator matters to.
ANY = "any"

# What a spec can ask for.
_ACCELERATORS = ("cpu", "cuda", "rocm")

# What a variant can be for; releases of an accelerator's software are numbers.
KNOWN_VARIANT = re.compile(r"any|cpu|(cuda|rocm)(-[0-9]+(\.[0-9]+)*)?")


def variant_for(
    accelerator: Choice, recipe: Recipe, versions: Sequence[Choice] = ()
) -> tuple[str, Variant] | None:
    """Return the first variant of a recipe for an accelerator, with its name.

    ``cuda-13.0`` is for CUDA 13.0, ``cuda`` does not say for which, ``any``
    serves every accelerator, and so does an MPI's ``cpu``. One with a proven
    version that all of `versions` admit comes before those without.

    Parameters
    ----------
    versions : sequence of Choice
        What the spec and other recipes ask of the recipe's version.
    """
    found = list(_variants_for(accelerator, recipe))
    right = (one for one in found if admitted(proven(recipe, one[1]), *versions))
    return next(right, found[0] if found else None)


def admitted(versions: Sequence[str], *choices: Choice) -> list[str]:
    """Return the versions that all choices admit."""
    return [version for version in versions if all(choice.admits(version) for choice in choices)]


def narrowed(accelerator: Choice, wanted: Sequence[tuple[Recipe, Sequence[Choice]]]) -> Choice:
    """Return the first release of an accelerator that all recipes have; itself where there is none.

    So that ``cuda`` is the same CUDA for each, where each alone would take another.
    """
    names = (name for recipe, _ in wanted for name in recipe.variants if KNOWN_VARIANT.fullmatch(name))
    for name in names:
        family, _, version = name.partition("-")
        if family == accelerator.name and version and accelerator.admits(version):
            release = _meant(name)
            if all(_serves(recipe, release, versions) for recipe, versions in wanted):
                return release
    return accelerator


def shared_accelerators(wanted: Sequence[tuple[Recipe, Sequence[Choice]]]) -> tuple[str, ...]:
    """Return what a spec's ``accelerator`` can be (``cpu``, ``cuda@13.0``) for all of some recipes; sorted.

    Parameters
    ----------
    wanted : sequence of (Recipe, sequence of Choice)
        The recipes, and what is asked of the version of each.
    """
    names = {name for recipe, _ in wanted for name in recipe.variants if KNOWN_VARIANT.fullmatch(name)}
    return tuple(
        sorted(
            name.replace("-", "@", 1)
            for name in names - {ANY}
            if all(_serves(recipe, _meant(name), versions) for recipe, versions in wanted)
        )
    )


def _serves(recipe: Recipe, accelerator: Choice, versions: Sequence[Choice]) -> bool:
    # One that does not say for which version it is meets no constraint: `accelerator_mistakes`.
    # What nobody has tried is offered to nobody.
    return any(
        admitted(proven(recipe, variant), *versions)
        for name, variant in _variants_for(accelerator, recipe)
        if not (accelerator.constraint and name == accelerator.name) and not variant.untried
    )


def older_accelerators(
    chosen: Collection[str], wanted: Sequence[tuple[Recipe, Sequence[Choice]]]
) -> tuple[str, ...]:
    """Return what a spec's ``accelerator`` can be for an older major release than was chosen.

    Another minor release would not help: it runs on the same drivers and GPUs.

    Parameters
    ----------
    chosen : collection of str
        Names of the variants that were chosen (``cuda-13.0``).
    wanted : sequence of (Recipe, sequence of Choice)
        As for `shared_accelerators`.
    """
    majors = {
        family: Version(version).major
        for family, _, version in (name.partition("-") for name in chosen if KNOWN_VARIANT.fullmatch(name))
        if version
    }
    ways = (way.partition("@") for way in shared_accelerators(wanted))
    return tuple(
        "".join(way) for way in ways if way[2] and way[0] in majors and Version(way[2]).major < majors[way[0]]
    )


def proven_hint(
    recipe: Recipe, found: tuple[str, Variant] | None, wanted: Sequence[tuple[Recipe, Sequence[Choice]]]
) -> str:
    """Return which versions of a recipe there are, and with which accelerators all that is asked is met."""
    versions = proven(recipe, found[1]) if found else recipe.versions
    for_variant = f" for {found[0]}" if found and found[1].versions else ""
    ways = ", ".join(shared_accelerators(wanted))
    elsewhere = f"; what is asked for is there with `accelerator:` as one of: {ways}" if ways else ""
    return f"proven{for_variant}: {', '.join(versions)}{elsewhere}"


def _meant(variant: str) -> Choice:
    """Return the accelerator that a variant's name means."""
    family, _, version = variant.partition("-")
    return Choice(name=family, constraint=f"=={version}.*" if version else "")


def _variants_for(accelerator: Choice, recipe: Recipe) -> Iterator[tuple[str, Variant]]:
    for name, variant in recipe.variants.items():
        family, _, version = name.partition("-")
        if family == accelerator.name and (not version or accelerator.admits(version)):
            yield name, variant
    for name in (ANY, "cpu") if recipe.kind == "mpi" else (ANY,):
        if name in recipe.variants:
            yield name, recipe.variants[name]


def proven(recipe: Recipe, variant: Variant) -> tuple[str, ...]:
    """Return the versions of a recipe that were proven for a variant, the preferred first."""
    return variant.versions or recipe.versions


def accelerator_mistakes(
    spec: Loaded[EnvSpec], at: Location, recipe: Recipe, wanted: Sequence[tuple[Recipe, Sequence[Choice]]]
) -> Iterator[EnvbuildError]:
    """Tell where a recipe has nothing for the accelerator of a spec.

    Parameters
    ----------
    at : Location
        Where the spec names the recipe.
    wanted : sequence of (Recipe, sequence of Choice)
        All recipes of the spec, and what is asked of the version of each: what
        is offered instead is right for all of them.
    """
    accelerator = spec.value.accelerator
    if ("accelerator",) in spec.places:
        at = spec.at("accelerator")
    found = variant_for(accelerator, recipe)
    if found is None:
        if recipe.kind == "mpi" or not recipe.variants:
            return  # the recipe's own mistake, told with it
        shown = f"`{accelerator.name}` {accelerator.constraint}".rstrip()
        problem = f"the recipe `{recipe.name}` has no variant for {shown}"
        yield RequestError(problem, at=at, hint=_another_accelerator(recipe, wanted))
    elif accelerator.constraint and found[0] == accelerator.name:
        problem = f"the recipe `{recipe.name}` does not say which version of `{accelerator.name}` it is for"
        yield RequestError(problem, at=at, hint=f"write `accelerator: {accelerator.name}`")


def unknown_accelerator(
    spec: Loaded[EnvSpec], known_variants: Sequence[str], mistakes: Sequence[EnvbuildError]
) -> Iterator[EnvbuildError]:
    """Tell an accelerator that is none, where no recipe missed a variant for it.

    Parameters
    ----------
    known_variants : sequence of str
        Those of all recipes; empty where the recipes of the spec have judged its release.
    mistakes : sequence of EnvbuildError
        What was found so far.
    """
    accelerator = spec.value.accelerator
    name = accelerator.name
    at = spec.at("accelerator")
    if ("accelerator",) not in spec.places or any(mistake.at == at for mistake in mistakes):
        return
    if name in _ACCELERATORS:
        releases = sorted({each for each in known_variants if each.startswith(f"{name}-")})
        if known_variants and not any(accelerator.admits(each.partition("-")[2]) for each in releases):
            problem = f"no recipe is for `{name}` {accelerator.constraint}"
            ways = ", ".join(each.replace("-", "@", 1) for each in releases)
            yield RequestError(
                problem, at=at, hint=f"there are: {ways}" if ways else f"write `accelerator: {name}`"
            )
    else:
        known = ", ".join(f"`{each}`" for each in _ACCELERATORS)
        yield RequestError(f"unknown accelerator `{name}`", at=at, hint=f"write one of: {known}")


def _another_accelerator(recipe: Recipe, wanted: Sequence[tuple[Recipe, Sequence[Choice]]]) -> str:
    if ways := shared_accelerators(wanted):
        return f"write `accelerator:` as one of: {', '.join(ways)}"
    own = ", ".join(name.replace("-", "@", 1) for name in sorted(recipe.variants))
    return f"it is for {own}, and no accelerator serves all recipes here: make an image of each"


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
