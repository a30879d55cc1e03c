"""Chooses base image, accelerator release and variants: the first that suit every recipe of a spec."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuild.errors import EnvbuildError, Hint, Location, RequestError, SpecKey
from envbuild.spec.accelerators import ANY, BY_VENDOR, KNOWN_VARIANT, NAMES
from envbuild.spec.base import BaseImage
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice, EnvSpec
from envbuild.spec.recipe import BaseRequirement, Recipe, Variant

RecipeConstraint = tuple[Recipe, Sequence[Choice]]
"""A recipe of a spec, and the constraints on its version."""


# Versions and variants


def matching_versions(versions: Sequence[str], *choices: Choice) -> list[str]:
    """Return the versions that meet all choices."""
    return [version for version in versions if all(choice.admits(version) for choice in choices)]


def proven(recipe: Recipe, variant: Variant) -> tuple[str, ...]:
    """Return the tested versions of a recipe for a variant, the preferred first."""
    return variant.versions or recipe.versions


def variant_for(
    accelerator: Choice, recipe: Recipe, choices: Sequence[Choice] = ()
) -> tuple[str, Variant] | None:
    """Return the first variant of a recipe for an accelerator, with its name.

    ``cuda-13.0`` is for CUDA 13.0, ``cuda`` names no release; ``any`` and an MPI's ``cpu`` serve every
    accelerator. Variants with a tested version that meets all `choices` come first.
    """
    variants = list(_variants_for(accelerator, recipe))
    matching = (pair for pair in variants if matching_versions(proven(recipe, pair[1]), *choices))
    return next(matching, variants[0] if variants else None)


def _variants_for(accelerator: Choice, recipe: Recipe) -> Iterator[tuple[str, Variant]]:
    for name, variant in recipe.variants.items():
        family, _, release = name.partition("-")
        if family == accelerator.name and (not release or accelerator.admits(release)):
            yield name, variant
    for name in (ANY, "cpu") if recipe.kind == "mpi" else (ANY,):
        if name in recipe.variants:
            yield name, recipe.variants[name]


# Accelerators


DriverConflict = Callable[[str, str], str]
"""Accelerator and release → why the site does not run it (``needs driver 580``); empty if it may."""


def pick_accelerator_release(
    accelerator: Choice,
    candidates: Sequence[RecipeConstraint],
    driver_conflict: DriverConflict = lambda _family, _release: "",
) -> tuple[Choice, str]:
    """Return the newest release of an accelerator that all recipes have and the site runs, and why in a line.

    It is `accelerator` itself without a reason if no release serves all recipes; one that the site does not
    run if no other does. All recipes then use the same CUDA for ``cuda``, even if each prefers another.
    Untried variants count if there are no others.
    """
    family = accelerator.name
    names = {name for name in _variant_names(candidates) if name.startswith(f"{family}-")}
    releases = [name.partition("-")[2] for name in names]
    releases = sorted(filter(accelerator.admits, releases), key=Version, reverse=True)
    lacking: dict[str, list[str]] = {}
    shared: list[str] = []
    for untried in (False, True):
        if not shared:
            lacking = {
                release: [
                    candidate[0].name
                    for candidate in candidates
                    if not _serves(candidate, choice, untried=untried)
                ]
                for release in releases
                for choice in [_accelerator_of(f"{family}-{release}")]
            }
            shared = [release for release in releases if not lacking[release]]
    if not shared:
        return accelerator, ""
    chosen = next((release for release in shared if not driver_conflict(family, release)), shared[0])
    rejected: dict[str, list[str]] = {}
    for release in releases[: releases.index(chosen)]:
        without = ", ".join(f"`{name}`" for name in lacking[release])
        reason = f"not for {without}" if without else driver_conflict(family, release)
        rejected.setdefault(reason, []).append(release)
    reasons = [f"{', '.join(newer)}: {reason}" for reason, newer in rejected.items()]
    # Without reasons nothing else was judged: a driver may be unknown.
    newest = "is the newest that fits" if reasons else "is the newest that the recipes have"
    why = "; ".join([f"{family} {chosen} {newest}", *reasons])
    return _accelerator_of(f"{family}-{chosen}"), why if len(releases) > 1 else ""


def shared_accelerators(candidates: Sequence[RecipeConstraint]) -> tuple[str, ...]:
    """Return the values of ``accelerator`` that suit all recipes (``cpu``, ``cuda@13.0``), sorted."""
    names = {name for name in _variant_names(candidates) if name != ANY}
    shared = (
        name for name in names if all(_serves(candidate, _accelerator_of(name)) for candidate in candidates)
    )
    return tuple(sorted(_as_written(name) for name in shared))


def older_accelerators(chosen: Collection[str], candidates: Sequence[RecipeConstraint]) -> tuple[str, ...]:
    """Return the values of ``accelerator`` for an older major release than that of the chosen variants.

    Another minor release would not help: it runs on the same drivers and GPUs.
    """
    majors = {
        family: Version(release).major
        for family, _, release in (name.partition("-") for name in chosen if KNOWN_VARIANT.fullmatch(name))
        if release
    }
    shared = (value.partition("@") for value in shared_accelerators(candidates))
    return tuple(
        f"{family}@{release}"
        for family, _, release in shared
        if release and family in majors and Version(release).major < majors[family]
    )


def _variant_names(candidates: Sequence[RecipeConstraint]) -> Iterator[str]:
    for recipe, _ in candidates:
        yield from (name for name in recipe.variants if KNOWN_VARIANT.fullmatch(name))


def _accelerator_of(variant: str) -> Choice:
    family, _, release = variant.partition("-")
    return Choice(name=family, constraint=f"=={release}.*" if release else "")


def _as_written(variant: str) -> str:
    """Return a variant's name as a value of ``accelerator``: ``cuda@13.0``."""
    return variant.replace("-", "@", 1)


def _serves(candidate: RecipeConstraint, accelerator: Choice, *, untried: bool = False) -> bool:
    # A variant that does not name its release meets no constraint; untried ones are never offered.
    recipe, choices = candidate
    return any(
        matching_versions(proven(recipe, variant), *choices)
        for name, variant in _variants_for(accelerator, recipe)
        if not (accelerator.constraint and name == accelerator.name) and (untried or not variant.untried)
    )


def proven_hint(
    recipe: Recipe, variant: tuple[str, Variant] | None, candidates: Sequence[RecipeConstraint]
) -> list[str | SpecKey]:
    """Return which versions of a recipe are proven, and which accelerators meet all constraints."""
    versions = proven(recipe, variant[1]) if variant else recipe.versions
    for_variant = f" for {variant[0]}" if variant and variant[1].versions else ""
    shared = ", ".join(shared_accelerators(candidates))
    hint: list[str | SpecKey] = [f"proven{for_variant}: {', '.join(versions)}"]
    if shared:
        hint += ["; all constraints can be met with ", SpecKey("accelerator"), f" as one of: {shared}"]
    return hint


def accelerator_errors(
    spec: Loaded[EnvSpec], at: Location, recipe: Recipe, candidates: Sequence[RecipeConstraint]
) -> Iterator[EnvbuildError]:
    """Yield an error if a recipe has no variant for the accelerator of a spec.

    `at` is where the spec names the recipe; `candidates` are all recipes of the spec: the hint offers what
    suits all of them.
    """
    accelerator = spec.value.accelerator
    if ("accelerator",) in spec.document.locations:
        at = spec.at("accelerator")
    variant = variant_for(accelerator, recipe)
    if variant is None:
        if recipe.kind == "mpi" or not recipe.variants:
            return  # an error of the recipe itself
        hint: Hint
        if shared := shared_accelerators(candidates):
            hint = ["write ", SpecKey("accelerator"), f" as one of: {', '.join(shared)}"]
        else:
            own = ", ".join(map(_as_written, sorted(recipe.variants)))
            hint = f"it is for {own}, and no accelerator serves all recipes here: make an image of each"
        shown = f"`{accelerator.name}` {accelerator.constraint}".rstrip()
        yield RequestError(f"the recipe `{recipe.name}` has no variant for {shown}", at=at, hint=hint)
    elif accelerator.constraint and variant[0] == accelerator.name:
        problem = f"the recipe `{recipe.name}` does not say which version of `{accelerator.name}` it is for"
        yield RequestError(problem, at=at, hint=["write ", SpecKey("accelerator", accelerator.name)])


def unknown_accelerator_errors(
    spec: Loaded[EnvSpec], read_variants: Callable[[], Sequence[str]], errors: Sequence[EnvbuildError]
) -> Iterator[EnvbuildError]:
    """Yield an error for an accelerator that does not exist, unless one of `errors` already reports it.

    `read_variants` returns those of all recipes; none if the recipes of the spec have checked its release.
    """
    accelerator, at = spec.value.accelerator, spec.at("accelerator")
    name = accelerator.name
    if ("accelerator",) not in spec.document.locations or any(error.at == at for error in errors):
        return
    if name not in NAMES:
        known = ", ".join(f"`{family}`" for family in NAMES)
        named = BY_VENDOR.get(name)
        hint: Hint = (
            f"write one of: {known}"
            if named is None
            else ["for its GPUs write ", SpecKey("accelerator", named.name)]
        )
        yield RequestError(f"unknown accelerator `{name}`", at=at, hint=hint)
        return
    known_variants = read_variants()
    releases = sorted({variant for variant in known_variants if variant.startswith(f"{name}-")})
    if known_variants and not any(accelerator.admits(variant.partition("-")[2]) for variant in releases):
        ways = ", ".join(map(_as_written, releases))
        hint = f"there are: {ways}" if ways else ["write ", SpecKey("accelerator", name)]
        yield RequestError(f"no recipe is for `{name}` {accelerator.constraint}", at=at, hint=hint)


# Base images


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConstraint:
    """A requirement of a recipe, or of the spec itself, on the base image."""

    by: str
    """Its source, for people: ```pytorch` 2.13.0``."""
    at: Location
    requirement: BaseRequirement

    def unmet(self, base: BaseImage) -> tuple[str, str] | None:
        """Return the requirement that a base does not meet, and what it has instead; None if it fits."""
        needed = self.requirement
        if needed.python and not has_python(base, needed.python):
            return f"Python {needed.python}", f"Python {base.python.version}"
        if needed.suites and base.suite not in needed.suites:
            return f"the suite {' or '.join(needed.suites)}", f"the suite {base.suite}"
        if needed.glibc is not None and Version(base.glibc) < Version(needed.glibc):
            return f"glibc {needed.glibc}", f"glibc {base.glibc}"
        return None

    def __str__(self) -> str:
        needed = self.requirement
        words = [f"Python {needed.python}"] if needed.python else []
        words += [f"the suite {' or '.join(needed.suites)}"] if needed.suites else []
        words += [f"glibc {needed.glibc}"] if needed.glibc is not None else []
        return f"{self.by} needs {', '.join(words)}"


def has_python(base: BaseImage, constraint: str) -> bool:
    """Return whether some patch release of a base's Python meets a constraint.

    The base image names only the minor release; the lock pins the patch release.
    """
    releases = (f"{base.python.version}.{patch}" for patch in range(100))
    return any(SpecifierSet(constraint).contains(release) for release in releases)


def newest_of_distribution(choice: Choice, bases: Sequence[Loaded[BaseImage]]) -> Loaded[BaseImage] | None:
    """Return the newest base image of the distribution that a choice names (``debian@12``)."""
    of_name = [base for base in bases if base.value.distribution == choice.name]
    versions = [base.value.version for base in of_name if choice.admits(base.value.version)]
    newest = max(versions, key=Version, default=None)
    of_newest = [base for base in of_name if base.value.version == newest]
    return min(of_newest, key=lambda base: _preference(base.value), default=None)


def first_fitting_base(
    constraints: Sequence[BaseConstraint], bases: Sequence[Loaded[BaseImage]], architecture: str
) -> Loaded[BaseImage] | None:
    """Return the base image for a spec that names none.

    Among those that meet all constraints, preferred ones come first and frozen ones last, then newer versions
    before older ones. A finished root is used only if the spec names it: nothing can be added to it.
    """
    fitting = (
        base
        for base in bases
        if architecture in base.value.architectures
        and base.value.root is None
        and not any(constraint.unmet(base.value) for constraint in constraints)
    )
    return min(fitting, key=lambda base: _preference(base.value), default=None)


def _preference(base: BaseImage) -> tuple[bool, bool, tuple[int, ...], str]:
    newest_first = tuple(-number for number in Version(base.version).release)
    return bool(base.frozen), not base.preferred, newest_first, base.name


def base_conflicts(
    spec: Loaded[EnvSpec], constraints: Sequence[BaseConstraint], base: BaseImage
) -> Iterator[EnvbuildError]:
    """Yield an error for each constraint that the base image of a spec does not meet."""
    for constraint in constraints:
        unmet = constraint.unmet(base)
        if unmet is not None:
            needed, has = unmet
            yield RequestError(
                f"{constraint.by} needs {needed}, and the base image `{base.name}` has {has}",
                at=constraint.at,
                hint=[
                    "remove ",
                    SpecKey("base", at=spec.at("base")),
                    " to let envbuild choose a compatible base",
                ],
            )


def no_fitting_base(
    constraints: Sequence[BaseConstraint], bases: Sequence[Loaded[BaseImage]], architecture: str
) -> Iterator[EnvbuildError]:
    """Yield each constraint that no base image meets, else the first two that conflict, as errors."""
    here = [base for base in bases if architecture in base.value.architectures]
    known = ", ".join(f"{base.value.name} (Python {base.value.python.version})" for base in here)
    if not here:
        yield RequestError(
            f"no base image is made for {architecture}",
            at=constraints[0].at if constraints else None,
            hint="write a definition for it: docs/howto/bases.md",
        )
        return
    impossible = [
        constraint
        for constraint in constraints
        if first_fitting_base([constraint], here, architecture) is None
    ]
    for constraint in impossible:
        yield RequestError(f"{constraint}: no base image has that", at=constraint.at, hint=f"known: {known}")
    if impossible:
        return
    for first, second in combinations(constraints, 2):
        if first_fitting_base([first, second], here, architecture) is None:
            problem = f"{first}, and {second}: no base image has both"
            hint = f"the first is asked for at {first.at}; make an image of each"
            yield RequestError(problem, at=second.at, hint=hint)
            return
    listed = "; ".join(map(str, constraints))
    yield RequestError(
        f"no base image is right for all: {listed}", at=constraints[-1].at, hint=f"known: {known}"
    )
