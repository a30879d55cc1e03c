"""Which base image: the one that a spec names, or the first that every recipe admits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuild.errors import EnvbuildError, Location, RequestError
from envbuild.spec.asked import ChosenRecipe
from envbuild.spec.base import BaseImage
from envbuild.spec.load import Loaded
from envbuild.spec.model import Choice, EnvSpec
from envbuild.spec.recipe import BaseRequirement

Mistakes = Iterator[EnvbuildError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one recipe of a spec needs of the base image.

    Attributes
    ----------
    by : str
        Who needs it, for people: ```pytorch` 2.13.0``.
    at : Location
        Where the spec names it.
    """

    by: str
    at: Location
    requirement: BaseRequirement

    def unmet(self, base: BaseImage) -> tuple[str, str] | None:
        """Return what is needed, and what a base has in its place; None where the base will do."""
        wanted = self.requirement
        if wanted.python and not has_python(base, wanted.python):
            return f"Python {wanted.python}", f"Python {base.python.version}"
        if wanted.suites and base.suite not in wanted.suites:
            return f"the suite {' or '.join(wanted.suites)}", f"the suite {base.suite}"
        if wanted.glibc is not None and Version(base.glibc) < Version(wanted.glibc):
            return f"glibc {wanted.glibc}", f"glibc {base.glibc}"
        return None

    def __str__(self) -> str:
        wanted = self.requirement
        words = [f"Python {wanted.python}"] if wanted.python else []
        words += [f"the suite {' or '.join(wanted.suites)}"] if wanted.suites else []
        words += [f"glibc {wanted.glibc}"] if wanted.glibc is not None else []
        return f"{self.by} needs {', '.join(words)}"


def has_python(base: BaseImage, constraint: str) -> bool:
    """Return whether a fix release of a base's Python meets a constraint.

    The definition knows the minor release alone; the lock pins the fix.
    """
    fixes = (f"{base.python.version}.{fix}" for fix in range(100))
    return any(SpecifierSet(constraint).contains(fix) for fix in fixes)


def newest_of_distribution(choice: Choice, bases: Sequence[Loaded[BaseImage]]) -> Loaded[BaseImage] | None:
    """Return the newest base image of the distribution that a choice names (``debian@12``)."""
    of_name = [base for base in bases if base.value.distribution == choice.name]
    versions = [base.value.version for base in of_name if choice.admits(base.value.version)]
    newest = max(versions, key=Version, default=None)
    of_newest = [base for base in of_name if base.value.version == newest]
    return min(of_newest, key=lambda base: _order(base.value), default=None)


def first_fitting(
    needs: Sequence[Need], bases: Sequence[Loaded[BaseImage]], architecture: str
) -> Loaded[BaseImage] | None:
    """Return the base image for a spec that names none.

    Of those that meet every need, the preferred come first and the frozen
    last, then newer versions before older ones. A finished root is taken
    where it is named alone: nothing can be added to it.
    """
    fitting = (
        base
        for base in bases
        if architecture in base.value.architectures
        and base.value.root is None
        and not any(need.unmet(base.value) for need in needs)
    )
    return min(fitting, key=lambda base: _order(base.value), default=None)


def _order(base: BaseImage) -> tuple[bool, bool, tuple[int, ...], str]:
    newest_first = tuple(-number for number in Version(base.version).release)
    return bool(base.frozen), not base.preferred, newest_first, base.name


def clashes(spec: Loaded[EnvSpec], needs: Sequence[Need], base: BaseImage) -> Mistakes:
    """Tell each recipe that the base image of a spec is not right for."""
    for need in needs:
        unmet = need.unmet(base)
        if unmet is not None:
            wanted, found = unmet
            yield RequestError(
                f"{need.by} needs {wanted}, and the base image `{base.name}` has {found}",
                at=need.at,
                hint=f"the base is named at {spec.at('base')}: without that line one that fits is looked for",
            )


def none_fits(needs: Sequence[Need], bases: Sequence[Loaded[BaseImage]], architecture: str) -> Mistakes:
    """Tell why no base image is right: what none has, else the first two needs that exclude each other."""
    here = [base for base in bases if architecture in base.value.architectures]
    known = ", ".join(f"{base.value.name} (Python {base.value.python.version})" for base in here)
    if not here:
        at = needs[0].at if needs else None
        yield RequestError(
            f"no base image is made for {architecture}",
            at=at,
            hint="write a definition for it: docs/bases.md",
        )
        return
    alone = [need for need in needs if first_fitting([need], here, architecture) is None]
    for need in alone:
        yield RequestError(f"{need}: no base image has that", at=need.at, hint=f"known: {known}")
    if alone:
        return
    for first, second in combinations(needs, 2):
        if first_fitting([first, second], here, architecture) is None:
            problem = f"{first}, and {second}: no base image has both"
            hint = f"the first is asked for at {first.at}; make an image of each"
            yield RequestError(problem, at=second.at, hint=hint)
            return
    told = "; ".join(map(str, needs))
    yield RequestError(f"no base image is right for all: {told}", at=needs[-1].at, hint=f"known: {known}")


def finished_root_mistakes(
    spec: Loaded[EnvSpec],
    located: Sequence[tuple[ChosenRecipe, tuple[str | int, ...]]],
    base: BaseImage,
) -> Mistakes:
    """Tell which packages would have to be added to a root that somebody else has made.

    Parameters
    ----------
    located : sequence of (ChosenRecipe, steps)
        The recipes and where the spec names them.
    """
    if base.root is None:
        return
    there = set(base.packages)
    hint = "if the root has it, list it under `packages` of the base image; else take a base made of packages"
    for number, name in enumerate(spec.value.packages.system):
        if name not in there:
            problem = f"`{name}` cannot be added: the base image `{base.name}` is a finished root"
            yield RequestError(problem, at=spec.at("packages", "system", number), hint=hint)
    for chosen, loc in located:
        wanted = [*chosen.recipe.system, *chosen.toolchain()]
        lacking = sorted(name for name in wanted if name not in there)
        if lacking:
            problem = (
                f"the recipe `{chosen.recipe.name}` needs {', '.join(lacking)}, "
                f"and the base image `{base.name}` is a finished root"
            )
            yield RequestError(problem, at=spec.at(*loc), hint=hint)
