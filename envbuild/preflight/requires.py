"""What Python's distributions ask for and an image does not have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.lock.model import marker_environment
from envbuild.preflight.extensions import foreign_extensions
from envbuild.preflight.installed import Installed
from envbuild.preflight.problems import Problem
from envbuild.preflight.tree import ImageTree

# Where an image's layers put distributions; an MPI's wheels are there for what is linked with them.
_PREFIXES = ("/opt/env", "/opt/mpi", "/opt/fabric", "/opt/accel")
_VENV = "/opt/env/pyvenv.cfg"
_PLACE = re.compile(r"(.*)/[^/]+\.(dist-info/METADATA|egg-info(/PKG-INFO)?)")
_SEES_DEBIAN = re.compile(r"^\s*include-system-site-packages\s*=\s*true\s*$", re.MULTILINE | re.IGNORECASE)


# Which fix of its Python an image has is not told apart: bounds between two of them hold.
_LATEST_FIX = 99
_MISSING = "add it to `packages.python` of the spec, or to the recipe that lists what it needs"
_OTHER = "two distributions want other versions of it: choose versions of them that agree, and lock again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSide:
    """What the image's Python sees, and what of it asks in vain."""

    distributions: int = 0
    """Of the image's own, which were judged (count)."""
    problems: tuple[Problem, ...] = ()
    """A requirement or an extension module each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A distribution that Python finds, the directory it lies in, and what it asks for."""

    path: str
    place: str
    installed: Installed
    requires: tuple[Requirement, ...]


def judge_python(
    tree: ImageTree, *, python: str, architecture: str, requests: Sequence[str] = ()
) -> PythonSide:
    """Judge the distributions and extension modules in an image's environment.

    Debian's packages serve where the image's Python sees them; what they ask for
    is dpkg's to judge, whose names and bounds are other ones.

    Parameters
    ----------
    tree : ImageTree
        The image.
    python, architecture : str
        Version of its Python (``3.11``); processor, in Debian's words.
    requests : sequence of str
        Requirements that it was made for: whose extras are asked for.
    """
    own = [f"{prefix}/lib/python{python}/site-packages" for prefix in _PREFIXES]
    found = _found(tree, _places(tree, python, own))
    environment = marker_environment(python, architecture)
    extras = _asked_extras(requests, found, environment)
    problems = [
        problem
        for name, one in sorted(found.items())
        if one.place in own
        for problem in _unmet(one, found, extras.get(name, set()), environment)
    ]
    problems += foreign_extensions(tree, own, python)
    problems += [
        Problem(
            rule="python.requires",
            file=_directory(one.path),
            need=f"Python {one.installed.python}",
            winner=f"Python {python}",
            hint="choose a version of it for this Python, or a base image with another one",
        )
        for one in found.values()
        if one.place in own and not _runs_on(python, one.installed.python)
    ]
    count = sum(one.place in own for one in found.values())
    return PythonSide(distributions=count, problems=tuple(sorted(set(problems))))


def _places(tree: ImageTree, python: str, own: Sequence[str]) -> list[str]:
    """Return the directories that the image's Python looks in, in its order."""
    library = f"/usr/lib/python{python}"
    debian = [f"/usr/local/lib/python{python}/dist-packages", f"{library}/dist-packages"]
    if python.startswith("2."):
        # There is no virtual environment: Debian's directories come first, and lead to ours.
        return [library, *debian, *own]
    sees = _SEES_DEBIAN.search(tree.texts.get(_VENV, ""))
    seen = [debian[0], "/usr/lib/python3/dist-packages", debian[1]] if sees else []
    return [library, own[0], *seen, *own[1:]]


def _found(tree: ImageTree, places: Sequence[str]) -> dict[str, _Found]:
    """Return name → what Python finds under it: the first on its way."""
    ranks = {place: rank for rank, place in enumerate(places)}
    lying = []
    for path, one in tree.distributions.items():
        place = _PLACE.fullmatch(path)
        if place and place[1] in ranks:
            lying.append((ranks[place[1]], path, one))
    found: dict[str, _Found] = {}
    for rank, path, one in sorted(lying, key=lambda each: each[:2]):
        requires = tuple(each for line in one.requires if (each := _requirement(line)) is not None)
        name = canonicalize_name(one.name)
        found.setdefault(name, _Found(path=path, place=places[rank], installed=one, requires=requires))
    return found


def _requirement(text: str) -> Requirement | None:
    """Return a requirement; None for what today's grammar does not know, and nobody can judge."""
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None


def _asked_extras(
    requests: Sequence[str], found: Mapping[str, _Found], environment: Mapping[str, str]
) -> dict[str, set[str]]:
    """Return name → the extras that are asked of it, by the requests and by what they lead to."""
    every = [("", _requirement(request)) for request in requests]
    every += [(name, each) for name, one in found.items() for each in one.requires]
    asking = [(by, each) for by, each in every if each is not None and each.extras]
    extras: dict[str, set[str]] = {}
    while True:
        before = sum(map(len, extras.values()))
        for by, wanted in asking:
            if _applies(wanted, extras.get(by, set()), environment):
                asked = extras.setdefault(canonicalize_name(wanted.name), set())
                asked.update(canonicalize_name(extra) for extra in wanted.extras)
        if sum(map(len, extras.values())) == before:
            return extras


def _unmet(
    one: _Found, found: Mapping[str, _Found], extras: set[str], environment: Mapping[str, str]
) -> Iterator[Problem]:
    for wanted in one.requires:
        got = found.get(canonicalize_name(wanted.name))
        # Most are met, and need no marker.
        if (got is not None and _meets(got.installed.version, wanted)) or not _applies(
            wanted, extras, environment
        ):
            continue
        yield Problem(
            rule="python.requires",
            file=_directory(one.path),
            need=f"{wanted.name}{wanted.specifier}",
            winner=f"{got.installed.shown} ({got.place})" if got else "nothing",
            hint=_OTHER if got else _MISSING,
        )


def _directory(path: str) -> str:
    return re.sub(r"/(METADATA|PKG-INFO)$", "", path)


def _runs_on(python: str, wanted: str) -> bool:
    """Whether some fix of a Python (``3.11``) is one that a distribution is for."""
    try:
        admitted = SpecifierSet(wanted)
    except InvalidSpecifier:
        return True
    return any(admitted.contains(f"{python}.{fix}") for fix in (0, _LATEST_FIX))


def _meets(version: str, wanted: Requirement) -> bool:
    try:
        return wanted.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # a version of Debian's, say: it is there, and no bound can be compared with it


def _applies(wanted: Requirement, extras: set[str], environment: Mapping[str, str]) -> bool:
    if wanted.marker is None:
        return True
    try:
        return any(wanted.marker.evaluate({**environment, "extra": extra}) for extra in ("", *sorted(extras)))
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion, InvalidSpecifier):
        return False
