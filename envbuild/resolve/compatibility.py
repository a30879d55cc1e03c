"""Judges a lock by the rules, for its site, with the places in the spec and the site file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from envbuild.errors import Location, RequestError
from envbuild.lock.model import Lock
from envbuild.rules.facts import Fact, fact_at
from envbuild.rules.from_lock import facts_of_lock
from envbuild.rules.from_site import nearest, stack_facts
from envbuild.rules.judge import RuleResult, judge_each
from envbuild.rules.knowledge import Knowledge
from envbuild.rules.rulebook import judge
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.spec.load import Loaded
from envbuild.spec.model import EnvSpec
from envbuild.spec.resolved import ResolvedSpec
from envbuild.spec.select import older_accelerators
from envbuild.spec.site import Site

# Rules that a build for an older CUDA satisfies.
_OLDER_BUILD_HELPS = ("CUDA.driver-floor", "GPU.dropped-by-cuda")


def judge_lock(
    resolved: ResolvedSpec, lock: Lock, knowledge: Knowledge | None = None
) -> tuple[RuleResult, ...]:
    """Return the rule results for a lock and its site; incompatible ones have a place and a hint.

    Of a site with partitions, it has to fit one. Rows are those of `knowledge`, by default envbuild's own.
    """
    results = judge_each(
        {
            site.value.name if site else "": judge(stack_of(resolved, lock, site), knowledge=knowledge)
            for site in resolved.sites or (None,)
        }
    )
    return tuple(
        replace(
            result, at=_location(result, resolved.path), hint=_hint(result, resolved.recipes, resolved.spec)
        )
        if result.outcome == "incompatible"
        else result
        for result in results
    )


def stack_of(resolved: ResolvedSpec, lock: Lock, site: Loaded[Site] | None = None) -> dict[str, Fact]:
    """Return the facts of a lock and a site; places in the spec and the site file are their sources."""
    image = facts_of_lock(lock)
    for path, key in _decided_by_spec(resolved.spec):
        at = nearest(resolved.spec_file.document.locations, key)
        if at is not None and path in image:
            image[path] = fact_at(image[path].value, at, image[path].source)
    if site is None:
        return stack_facts(image)
    return stack_facts(image, site.value, places=site.document.locations)


def _decided_by_spec(spec: EnvSpec) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    yield "asked.accelerator", ("accelerator",)
    yield "mpi.family", ("mpi",)
    yield "mpi.version", ("mpi",)
    yield "python.version", ("base",)
    for index, choice in enumerate(spec.frameworks):
        yield f"frameworks.{choice.name}.version", ("frameworks", index)


def _location(result: RuleResult, spec: Path) -> Location:
    """Return the place to change: in the spec if it decides one of the facts, else in the site file."""
    locations = [fact.at for fact in result.facts.values() if fact.at is not None]
    in_spec = (at for at in locations if at.path == spec)
    return next(in_spec, locations[0] if locations else Location(path=spec))


def _hint(result: RuleResult, recipes: Sequence[ChosenRecipe], spec: EnvSpec) -> str:
    """Return a result's hint, with the older builds that the recipes of the spec have, if one helps."""
    if result.rule not in _OLDER_BUILD_HELPS:
        return result.hint
    older = older_accelerators(
        {chosen.variant_name for chosen in recipes},
        [
            (
                chosen.recipe,
                [choice for choice in spec.frameworks if choice.name == chosen.recipe.name],
            )
            for chosen in recipes
        ],
    )
    if not older:
        return f"{result.hint}; the recipes here have none"
    return f"{result.hint}; all recipes here have: {', '.join(f'`accelerator: {way}`' for way in older)}"


def hidden_packages(resolved: ResolvedSpec, lock: Lock) -> Iterator[RequestError]:
    """Yield errors for Python distributions that would hide Debian's, for which a recipe was made."""
    recipes = [chosen.recipe.name for chosen in resolved.recipes if chosen.recipe.debian_python]
    debian_versions = {pin.name: pin.version for pin in lock.system_debs if recipes}
    for pin in lock.python:
        package = f"python3-{pin.name}"
        if package in debian_versions:
            problem = (
                f"{pin.name} {pin.version} would hide Debian's {package} {debian_versions[package]}, "
                f"which {' and '.join(recipes)} is made for"
            )
            hint = f"leave `{pin.name}` out of `packages.python`: Debian's is there to import"
            # Where the spec asks for it, or for one that needs it.
            locations = (
                request.at for request in resolved.requested if pin.name in lock.needed_by([request.name])
            )
            yield RequestError(problem, at=next(locations, Location(path=resolved.path)), hint=hint)
