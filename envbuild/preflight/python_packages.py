"""Checks an image's Python packages: unmet requirements, extension modules for another Python. Pure.

Source: PEP 508 (requirements), PEP 3149 (tags of extension modules), PEP 384 (``abi3``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.errors import RequestError
from envbuild.jobs.judge import own_sites
from envbuild.jobs.report import CheckResult
from envbuild.preflight.distributions import Distribution
from envbuild.preflight.problems import mismatch
from envbuild.preflight.scan import MODULE_SYMBOL, FileSystemScan, ScannedFile
from envbuild.spec.model import MAX_TEXT
from envbuild.spec.python_platform import marker_environment

_VENV = "/opt/env/pyvenv.cfg"
_PLACE = re.compile(r"(.*)/(?:[^/]+\.(?:dist-info/METADATA|egg-info(?:/PKG-INFO)?)|EGG-INFO/PKG-INFO)")
# The module that a path below a directory of packages belongs to.
_MODULE = re.compile(r"(?:.*/(?:site|dist)-packages|/usr/lib/python[0-9.]+)/([^/.]+)(?:[/.]|$)")
SEES_BASE = re.compile(
    r"^[ \t]*include-system-site-packages[ \t]*=[ \t]*true[ \t\r]*$", re.MULTILINE | re.IGNORECASE
)
"""In ``pyvenv.cfg``: a virtual environment sees the packages of its base."""

# The patch release of an image's Python is unknown; bounds between these two hold.
_PATCH_RELEASES = (0, 99)
_TAGGED = re.compile(r".+?\.(?:[^/]+\.)?(cpython-[0-9]+[a-z]*|pypy[0-9]+|abi3)(?:-[^/.]+)*\.so")
_MAX_EVALUATIONS = 1_000_000  # of markers; some take ten seconds in all
HINT_MISSING = "add it to `packages.python` of the spec, or to the recipe that lists what it needs"
HINT_OTHER = "two distributions want other versions of it: choose versions of them that agree, and lock again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    metadata_path: str
    directory: str
    distribution: Distribution
    requires: tuple[Requirement, ...]


def judge_python(
    scan: FileSystemScan,
    *,
    python: str,
    architecture: str,
    requests: Sequence[str] = (),
    directories: Sequence[str] = (),
    others: Mapping[str, Distribution] = MappingProxyType({}),
) -> tuple[set[CheckResult], int]:
    """Check distributions and extension modules for an image's Python (``3.11``) and Debian architecture.

    Returns the problems, and how many distributions were judged: the image's own.
    Debian's packages count if the image's Python sees them, but their own requirements, with other names and
    bounds, are left to dpkg. `requests` are the lock's requirements; the extras that they name count.
    In an image that is not ours the Python searches `directories`, in this order, and all of them count;
    `others`, by canonical name, are there besides.
    """
    own = list(directories) or own_sites(python)
    packages = _packages(scan, directories or _search_path(scan, python, own))
    for name, distribution in others.items():
        packages.setdefault(
            name, _Package(metadata_path="", directory="", distribution=distribution, requires=())
        )
    environment = marker_environment(python, architecture)
    extras = _requested_extras(requests, packages, environment)
    judged = {name: package for name, package in packages.items() if package.directory in own}
    problems = {
        problem
        for name, package in judged.items()
        for problem in _unmet(package, packages, extras.get(name, set()), environment)
    }
    problems |= {
        mismatch(
            "python.requires",
            file=_shown_path(package),
            need=f"Python {package.distribution.python}",
            winner=f"Python {python}",
            hint="choose a version of it for this Python, or a base image with another one",
        )
        for package in judged.values()
        if not _runs_on(python, package.distribution.python)
    }
    problems |= set(_foreign_extensions(scan.objects, own, python))
    return problems, len(judged)


def installed_modules(scan: FileSystemScan) -> frozenset[str]:
    """Return the top-level modules that an image has, in any directory of a Python."""
    paths = (*scan.files, *scan.objects, *scan.links, *scan.directories)
    matches = (_MODULE.match(path) for path in paths)
    return frozenset(match[1] for match in matches if match)


def _search_path(scan: FileSystemScan, python: str, own: Sequence[str]) -> list[str]:
    """Return the directories that the image's Python searches, in its order."""
    library = f"/usr/lib/python{python}"
    debian = [f"/usr/local/lib/python{python}/dist-packages", f"{library}/dist-packages"]
    if python.startswith("2."):
        # There is no virtual environment: Debian's directories come first, and lead to ours.
        return [library, *debian, *own]
    sees = SEES_BASE.search(scan.texts.get(_VENV, ""))
    seen = [debian[0], "/usr/lib/python3/dist-packages", debian[1]] if sees else []
    return [library, own[0], *seen, *own[1:]]


def _packages(scan: FileSystemScan, search_path: Sequence[str]) -> dict[str, _Package]:
    """Return name → the distribution that Python finds first under it."""
    ranks = {directory: rank for rank, directory in enumerate(search_path)}
    installed = []
    for path, distribution in scan.distributions.items():
        place = _PLACE.fullmatch(path)
        if place and place[1] in ranks:
            installed.append((ranks[place[1]], path, distribution))
    packages: dict[str, _Package] = {}
    for rank, path, distribution in sorted(installed, key=lambda row: row[:2]):
        requires = tuple(filter(None, map(read_requirement, distribution.requires)))
        package = _Package(
            metadata_path=path, directory=search_path[rank], distribution=distribution, requires=requires
        )
        packages.setdefault(canonicalize_name(distribution.name), package)
    return packages


def read_requirement(text: str) -> Requirement | None:
    """Return a requirement; None if it violates today's grammar, so that it cannot be checked."""
    try:
        return Requirement(text) if len(text) <= MAX_TEXT else None
    except (InvalidRequirement, RecursionError):
        return None


def _requested_extras(
    requests: Sequence[str], packages: Mapping[str, _Package], environment: Mapping[str, str]
) -> dict[str, set[str]]:
    """Return name → its requested extras, by the requests and by the distributions that they lead to."""
    with_extras: dict[str, list[Requirement]] = {
        name: [requirement for requirement in package.requires if requirement.extras]
        for name, package in packages.items()
    }
    extras: dict[str, set[str]] = {}
    todo: list[tuple[str, str]] = []
    work = 0

    def add(requirement: Requirement) -> None:
        nonlocal work
        name = canonicalize_name(requirement.name)
        requested = extras.setdefault(name, set())
        for extra in map(canonicalize_name, requirement.extras):
            if extra not in requested:
                requested.add(extra)
                todo.append((name, extra))
                # Each is a marker to evaluate, here and for what is unmet.
                work += len(packages[name].requires) if name in packages else 1
                if work > _MAX_EVALUATIONS:
                    problem = "the Python packages of the image ask for too many extras of one another"
                    raise RequestError(problem, hint="do not use an image whose packages do that")

    every = [*filter(None, map(read_requirement, requests)), *chain(*with_extras.values())]
    for requirement in every:
        if applies(requirement, (), environment):
            add(requirement)
    while todo:
        name, extra = todo.pop()
        for requirement in with_extras.get(name, ()):
            if applies(requirement, (extra,), environment):
                add(requirement)
    return extras


def _unmet(
    package: _Package, packages: Mapping[str, _Package], extras: set[str], environment: Mapping[str, str]
) -> Iterator[CheckResult]:
    for requirement in package.requires:
        installed = packages.get(canonicalize_name(requirement.name))
        # Most are met, and need no marker.
        if installed is not None and meets(installed.distribution.version, requirement):
            continue
        if not applies(requirement, extras, environment):
            continue
        winner = "nothing"
        if installed is not None:
            distribution = installed.distribution
            winner = f"{distribution.name} {distribution.version} ({installed.directory})"
        yield mismatch(
            "python.requires",
            file=_shown_path(package),
            need=f"{requirement.name}{requirement.specifier}",
            winner=winner,
            hint=HINT_OTHER if installed else HINT_MISSING,
        )


def _shown_path(package: _Package) -> str:
    return re.sub(r"/(METADATA|PKG-INFO)$", "", package.metadata_path)


def _runs_on(python: str, specifiers: str) -> bool:
    """Return whether a distribution supports some patch release of a Python (``3.11``)."""
    try:
        admitted = SpecifierSet(specifiers)
    except InvalidSpecifier:
        return True
    return any(admitted.contains(f"{python}.{patch}") for patch in _PATCH_RELEASES)


def meets(version: str, requirement: Requirement) -> bool:
    """Whether an installed version is within the bounds of a requirement."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # a version of Debian's, say: it is there, and no bound can be compared with it


def applies(requirement: Requirement, extras: Collection[str], environment: Mapping[str, str]) -> bool:
    """Whether the marker of a requirement holds, with no extra or one of these."""
    marker = requirement.marker
    if marker is None:
        return True
    try:
        return any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *sorted(extras)))
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion, InvalidSpecifier):
        return False


def _foreign_extensions(
    objects: Mapping[str, ScannedFile], directories: Sequence[str], python: str
) -> Iterator[CheckResult]:
    """Yield a problem for each extension module without a variant for the image's Python.

    A file that only has the name of a module, and defines none, is opened otherwise.
    """
    cpython = f"cpython-{python.replace('.', '')}"
    # Until 3.7 a letter named the allocator.
    own_tags = {"", cpython, f"{cpython}m"} | ({"abi3"} if python.startswith("3.") else set())
    # A module may have variants, for several Pythons and for several MPIs.
    modules: dict[str, dict[str, str]] = {}
    for path, file in objects.items():
        if path.startswith(tuple(f"{directory}/" for directory in directories)):
            directory, _, name = path.rpartition("/")
            tagged = _TAGGED.fullmatch(name)
            is_module = any(symbol.startswith(MODULE_SYMBOL) for symbol in file.symbols.defined)
            modules.setdefault(f"{directory}/{name.partition('.')[0]}", {})[path] = (
                tagged[1] if tagged and is_module else ""
            )
    for variants in modules.values():
        if all(tag not in own_tags for tag in variants.values()):
            path, tag = min(variants.items())
            yield mismatch(
                "python.abi",
                file=path,
                need=tag,
                winner=f"Python {python}",
                hint="it cannot be imported: take a wheel for this Python, or have it built from its source",
            )
