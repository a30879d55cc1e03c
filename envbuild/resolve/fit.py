"""Does what was locked fit together, and fit its site: the rules' verdicts, and where each fact stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.compat.engine import Verdict, judge
from envbuild.compat.facts import Facts
from envbuild.compat.from_lock import facts_of_lock
from envbuild.compat.from_site import PLACES, facts_of_site, merge
from envbuild.compat.telling import tell_verdicts
from envbuild.errors import Location, RequestError
from envbuild.events import Emit
from envbuild.lock.model import Lock, PythonPin
from envbuild.spec.asked import Asked
from envbuild.spec.select import older_accelerators


def judge_lock(asked: Asked, lock: Lock) -> tuple[Verdict, ...]:
    """Return what the rules say of a lock, and of the site where one is known."""
    return judge(stack_of(asked, lock))


def stack_of(asked: Asked, lock: Lock) -> Facts:
    """Return the facts of a lock and its site; places in the spec and the site file are their origins."""
    image = facts_of_lock(lock)
    image = image.model_copy(update={"origins": {**image.origins, **dict(_spec_origins(asked))}})
    if asked.site is None:
        return image
    site = asked.site_places
    places = {path: str(at) for path, loc in PLACES.items() if (at := _nearest(site, loc)) is not None}
    return merge(image, facts_of_site(asked.site, places=places))


def tell(verdicts: tuple[Verdict, ...], asked: Asked, emit: Emit) -> None:
    """Refuse and warn with the places of the spec and the site's file.

    Raises
    ------
    RequestError, ManyErrors
        As `tell_verdicts`.
    """
    tell_verdicts(
        verdicts,
        emit,
        place=lambda verdict: _place(verdict, asked),
        hint=lambda verdict: _hint(verdict, asked),
    )


def _hint(verdict: Verdict, asked: Asked) -> str:
    """Return a verdict's hint, and which older builds the recipes of the spec have, where one would do."""
    if verdict.remedy != "older-accelerator":
        return verdict.hint
    older = older_accelerators(
        {chosen.variant_name for chosen in asked.recipes},
        [
            (chosen.recipe, [choice for choice in asked.spec.frameworks if choice.name == chosen.recipe.name])
            for chosen in asked.recipes
        ],
    )
    if not older:
        return f"{verdict.hint}; the recipes here have none"
    return f"{verdict.hint}; all recipes here have: {', '.join(f'`accelerator: {way}`' for way in older)}"


def hidden_packages(asked: Asked, lock: Lock) -> Iterator[RequestError]:
    """Tell the Python distributions that would come before Debian's own, which a recipe was made for."""
    seers = [chosen.recipe.name for chosen in asked.recipes if chosen.recipe.debian_python]
    theirs = {pin.name: pin.version for pin in lock.system_debs if seers}
    for pin in lock.python:
        package = f"python3-{pin.name}"
        if package in theirs:
            problem = (
                f"{pin.name} {pin.version} would hide Debian's {package} {theirs[package]}, "
                f"which {' and '.join(seers)} is made for"
            )
            hint = f"leave `{pin.name}` out of `packages.python`: Debian's is there to import"
            yield RequestError(problem, at=_asking(asked, pin, lock), hint=hint)


def _asking(asked: Asked, pin: PythonPin, lock: Lock) -> Location:
    """Return where the spec asks for a distribution, or for what needs it."""
    for index, text in enumerate(asked.spec.packages.python):
        wanted = [canonicalize_name(Requirement(text).name)]
        if pin.name in lock.needed_by(wanted):
            return _nearest(asked.spec_places, ("packages", "python", index)) or Location(path=asked.path)
    return Location(path=asked.path)


def _spec_origins(asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield the facts that the spec decides, and where it does so."""
    for path, loc in _spec_locs(asked):
        at = _nearest(asked.spec_places, loc)
        if at is not None:
            yield path, str(at)


def _spec_locs(asked: Asked) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    yield "asked.accelerator", ("accelerator",)
    yield "mpi.family", ("mpi",)
    yield "mpi.version", ("mpi",)
    yield "python.version", ("base",)
    for index, choice in enumerate(asked.spec.frameworks):
        yield f"frameworks.{choice.name}.version", ("frameworks", index)


def _nearest(places: Mapping[tuple[str | int, ...], Location], loc: tuple[str | int, ...]) -> Location | None:
    """Return where a value stands, or the one around it; never the whole file."""
    depths = range(len(loc), 0, -1)
    return next((places[loc[:depth]] for depth in depths if loc[:depth] in places), None)


def _place(verdict: Verdict, asked: Asked) -> Location:
    """Return where to mend it: in the spec where that decides one of the facts, else in the site's file."""
    for places in (asked.spec_places, asked.site_places):
        known = {str(at): at for at in places.values()}
        for met in verdict.facts:
            if met.origin in known:
                return known[met.origin]
    return Location(path=asked.path)
