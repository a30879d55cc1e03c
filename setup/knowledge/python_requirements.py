"""Ranges of versions that Python packages state of each other, of frameworks and of Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from envbuild.rules.knowledge import Ranges
from envbuild.spec.fields import Distribution
from envbuild.spec.load import load
from envbuild.spec.model import Model
from envbuild.spec.python_platform import marker_environment
from envbuild.system.network import Client
from knowledge.index import EACH, Kept, index_of, read_requirements, series_of
from knowledge.python_packages import fact_of
from knowledge.ranges import following
from knowledge.stored import Input
from knowledge.write import new_table

INPUTS = ("index-requirements",)
_READERS = 8  # threads that ask the index
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 14))


class Packages(Model):
    """Names of packages whose metadata are read, and of those that they require."""

    each_release: tuple[Distribution, ...]
    """Releases of one series state different versions: each is read."""
    compiled: tuple[Distribution, ...]
    """Most wheels are for one Python each: their tags say which."""
    others: tuple[Distribution, ...]
    """Packages whose newest release of each series is read."""
    required: tuple[Distribution, ...]
    """Distributions whose requirements are kept."""

    @property
    def all(self) -> frozenset[str]:
        """Packages whose metadata are read."""
        return frozenset((*self.each_release, *self.compiled, *self.others))


_FILE = Path(__file__).with_name("packages.yaml")
PACKAGES = load(Packages, _FILE.read_bytes(), _FILE).value


class Extra(NamedTuple):
    """An extra of a package, and a requirement of it that counts whenever both are installed."""

    package: str
    extra: str
    required: str
    is_strict: bool = False
    """Whether releases above its upper bounds fail; mostly they are caution."""


EXTRAS = (
    Extra("llamafactory", "vllm", "vllm", is_strict=True),  # it refuses others when it starts
    Extra("transformers", "torch", "torch"),
    Extra("transformers", "tf", "tensorflow"),
    Extra("transformers", "accelerate", "accelerate"),
    Extra("diffusers", "torch", "torch"),
)
# Requirements that releases state and that break without harm, or that are judged by other rows.
_LEFT_OUT = {
    ("jax", "numpy"),
    ("dgl", "torchdata"),
    ("tensorflow", "jax"),
    ("tensorflow", "grpcio"),
    ("tensorflow", "setuptools"),
}
# Packages that use these at run time; of others the requirement is of their build, or a habit.
_ONLY_OF = {
    "setuptools": {"vllm", "pytorch-lightning", "torch", "tensorboard"},
    "typing-extensions": {"tensorflow"},
}
# A lower bound below these says nothing of stacks of today.
_FLOORS = {"numpy": "1.20", "scipy": "1.9", "pandas": "2.0", "scikit-learn": "1.0", "h5py": "3.0"}
# Libraries with an interface for compiled code that another release does not have.
_FATAL = {
    ("torchvision", "torch"),
    ("torchaudio", "torch"),
    ("torchtext", "torch"),
    ("jax", "jaxlib"),
    ("tensorflow-text", "tensorflow"),
}
# Builds for ROCm name other versions than those in the index.
_OTHER_FOR_ROCM = {"vllm", "xformers", "torch"}
_OF_ROCM = {"torch", "torchvision", "torchaudio", "xformers", "triton"}
# Suffix of a fact: the Pythons on which a distribution is required, if it is not on all.
_ON = "@python"
# Their own rows are made from the Pythons of all wheels of a series.
_FRAMEWORKS = {"torch", "tensorflow", "jax"}
_RULES = {
    "torch": "PYTORCH.of-package",
    "numpy": "NUMPY.of-package",
    "tensorflow": "TENSORFLOW.of-package",
    "jax": "JAX.of-package",
    "jaxlib": "JAX.of-package",
    "protobuf": "PROTOBUF.of-package",
}
_TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "numpy": "NumPy"}
Release = tuple[Version, Mapping[str, Any]]


def kept_of(name: str) -> Kept:
    """Return which facts are kept of a package."""
    required = {
        required for required in {*PACKAGES.required} - {name} if name in _ONLY_OF.get(required, {name})
    }
    required -= {required for package, required in _LEFT_OUT if package == name}
    required |= {extra.required for extra in EXTRAS if extra.package == name}
    depth = EACH if name in PACKAGES.each_release else 2
    return Kept(tuple(sorted(required)), depth, tags=name in PACKAGES.compiled)


def read(names: Iterable[str] = PACKAGES.all) -> dict[str, Any]:
    """Return the facts that packages state in the index of NumPy; MachineError if it cannot be read."""
    index = index_of("numpy")

    def read_one(name: str) -> dict[str, Any]:
        with Client() as client:
            return changes(name, read_requirements(client, index, name, kept_of(name)))

    ordered = sorted(names)
    with ThreadPoolExecutor(_READERS) as readers:
        return dict(zip(ordered, readers.map(read_one, ordered), strict=True))


def changes(name: str, releases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last release, and what each one changes in the facts of the one before.

    Of requirements it has the ranges that are required on one of the Pythons, and on which, if not on all.
    """
    made_again = {Version(version).base_version for version in releases if Version(version).is_postrelease}
    changed: dict[str, dict[str, Any]] = {}
    before: Mapping[str, Any] = {}
    for version, stated in releases.items():
        facts = _reduced(name, stated)
        change = {
            key: facts.get(key) for key in sorted({*before, *facts}) if facts.get(key) != before.get(key)
        }
        if change or version in made_again:
            changed[version] = change
        before = facts
    return {"until": next(reversed([*releases]), "0"), "releases": changed}


def _reduced(name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: stated[key] for key in ("python", "tags") if stated.get(key)}
    supported = SpecifierSet(",".join(facts.values()))
    pythons = tuple(python for python in _PYTHONS if supported.contains(python)) or _PYTHONS
    for required, lines in stated.items():
        if required in ("python", "tags"):
            continue
        texts = _on_pythons(tuple(lines), "", pythons)
        if texts and "" not in texts.values():
            facts[required] = sorted({*texts.values()})
            if on := _range_of(tuple(texts), pythons):
                facts[f"{required}{_ON}"] = on
        for extra in (each for each in EXTRAS if (each.package, each.required) == (name, required)):
            if of_extra := {*_on_pythons(tuple(lines), extra.extra, pythons).values()} - {""}:
                facts[f"{required}[{extra.extra}]"] = sorted(of_extra)
    return facts


def _range_of(pythons: Sequence[str], supported: Sequence[str]) -> str:
    """Return the range from the first to the last of some Pythons; empty for all that are supported."""
    bounds = [f">={pythons[0]}"] if pythons[0] != supported[0] else []
    return ",".join([*bounds, f"<{following(pythons[-1])}"] if pythons[-1] != supported[-1] else bounds)


@cache
def _on_pythons(lines: tuple[str, ...], extra: str, pythons: tuple[str, ...]) -> dict[str, str]:
    """Return Python → the range that requirements state on it, empty if they state none.

    A Python on which none of them counts is left out.
    """
    texts: dict[str, str] = {}
    requirements = [requirement for line in lines if (requirement := _requirement(line))]
    for python in pythons:
        environment = {**marker_environment(python, "amd64"), "extra": extra}
        applying = [
            requirement
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate(environment)
        ]
        if applying:
            clauses = (str(clause) for requirement in applying for clause in requirement.specifier)
            texts[python] = ",".join(sorted(clauses))
    return texts


def _requirement(line: str) -> Requirement | None:
    """Return a requirement; None if it does not follow PEP 508."""
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _releases(stated: Mapping[str, Any]) -> tuple[Release, ...]:
    """Return releases with all their facts, of which the stored ones are changes."""
    facts: dict[str, Any] = {}
    releases: list[Release] = []
    for version, change in {
        **stated["releases"],
        stated["until"]: stated["releases"].get(stated["until"], {}),
    }.items():
        facts = {**facts, **change}
        releases.append((Version(version), facts))
    return tuple(releases)


def rows(inputs: Mapping[str, Input]) -> Iterator[Ranges]:
    """Yield the tables of all packages, sorted by rule and facts."""
    source = inputs[INPUTS[0]]
    tables = [
        table
        for name, stated in source.facts.items()
        for table in _tables(name, _releases(stated), source.date)
    ]
    yield from sorted(tables, key=lambda table: (table.rule, table.needs, table.if_))


def _tables(name: str, releases: Sequence[Release], date: str) -> Iterator[Ranges]:
    keys = {key for _, facts in releases for key in facts} - {"python", "tags"}
    stated = {key for key in keys if not key.endswith(_ON)}
    strict = {f"{extra.required}[{extra.extra}]" for extra in EXTRAS if extra.is_strict}
    package = _TITLES.get(name, name)
    for key in sorted(stated):
        required, _, of_extra = key.partition("[")
        if of_extra and required in stated:
            continue
        lower_alone = bool(of_extra) and key not in strict
        rule = "NUMPY.of-framework" if (name, required) == ("tensorflow", "numpy") else _RULES.get(required)
        where = {}
        if name in _OTHER_FOR_ROCM and required in _OF_ROCM:
            where["frameworks.pytorch.accelerator"] = "!=rocm"
        for on in sorted({facts.get(f"{key}{_ON}") or "" for _, facts in releases}):
            value = partial(_required, name, key, on=on, lower_alone=lower_alone)
            found = _runs(name, releases, value)
            ranges = {span: range_ for span, range_ in found if not _says_nothing(required, range_)}
            if ranges:
                yield new_table(
                    rule or "PACKAGE.requires",
                    if_=fact_of(name),
                    needs=fact_of(required),
                    ranges=ranges,
                    where=where | ({"python.version": on} if on else {}),
                    severity="error" if (name, required) in _FATAL else "warning",
                    source=f"Requires-Dist of {name}, read from the index",
                    seen=date,
                    fix=f"take the {_TITLES.get(required, required)} that it requires, or another {package}",
                )
    python, origin = (
        (_of_tags, "tags of the wheels") if name in PACKAGES.compiled else (_of_python, "Requires-Python")
    )
    ranges = {} if name in _FRAMEWORKS else dict(_runs(name, releases, python))
    if ranges:
        yield new_table(
            "PYTHON.of-package",
            if_=fact_of(name),
            needs="python.version",
            ranges=ranges,
            severity="warning",
            source=f"{origin} of {name}, read from the index",
            seen=date,
            fix=f"take another Python, or another {package}",
        )


def _runs(
    name: str, releases: Sequence[Release], value: Callable[[Mapping[str, Any]], str]
) -> Iterator[tuple[str, str]]:
    """Yield ranges of neighbouring releases that state the same, and what they state."""
    values = [value(facts) for _, facts in releases]
    starts = [index for index, text in enumerate(values) if not index or text != values[index - 1]]
    for start, after in zip(starts, [*starts[1:], len(releases)], strict=True):
        if values[start]:
            lower, end = _lower(name, releases, start), _end(name, releases, after)
            # Images of vendors have candidates of it.
            candidate = "rc0" if name == "tensorflow" and "post" not in lower else ""
            yield f">={lower}{candidate},<{end}", values[start]


def _lower(name: str, releases: Sequence[Release], index: int) -> str:
    """Return the bound from which on a release counts.

    Of a series its newest release was read; earlier ones may state something else.
    """
    first = releases[index][0]
    return _bound(first) if name in PACKAGES.each_release else first.base_version


def _end(name: str, releases: Sequence[Release], index: int) -> str:
    """Return the bound before a release; of the one after the last, if there is none."""
    if name not in PACKAGES.each_release:
        following_series = series_of(str(releases[min(index, len(releases) - 1)][0]))
        return following_series if index < len(releases) else following(following_series)
    before = releases[index - 1][0]
    if index == len(releases):
        return following(_bound(Version(before.base_version)))
    version = releases[index][0]
    # Of one that was made again (`.post1`) the first one is perhaps withdrawn, and was not read.
    is_again = version.base_version == before.base_version
    return _bound(version if is_again else Version(version.base_version))


def _bound(version: Version) -> str:
    text = series_of(str(version), max(3, len(version.release)))
    return text if version.post is None else f"{text}.post{version.post}"


def _required(name: str, key: str, facts: Mapping[str, Any], *, on: str, lower_alone: bool) -> str:
    """Return the range that a release requires of a distribution on the Pythons of a range (`on`).

    Empty if it requires none, or on other Pythons.
    """
    if not facts.get(key) or (facts.get(f"{key}{_ON}") or "") != on:
        return ""
    required = key.partition("[")[0]
    is_series = name not in PACKAGES.each_release or required in ("torch", "torchvision", "torchaudio")
    range_ = loosest(facts[key], is_series=is_series)
    if required == "protobuf":
        # Releases 3.20.x read the code of 3.19, and are those that its makers name.
        range_ = re.sub(r"<3\.20$|<=3\.20\.[0-9]$", "<3.21", range_)
    if (name, required) == ("tensorflow", "numpy"):
        # The newest NumPy of their day: conda-forge and NVIDIA build with later ones of the major.
        range_ = re.sub(r"<=?1\.24(?:\.3)?$", "<2", range_)
        range_ = re.sub(r"<2\.[1-9][0-9]*(?:\.0)?$", "<3", range_)
    lower = (clause for clause in range_.split(",") if clause.startswith(">"))
    return next(lower, range_) if lower_alone else range_


def _says_nothing(required: str, range_: str) -> bool:
    match = re.fullmatch(r">=?([0-9]+\.[0-9]+)[^<]*", range_)
    return match is not None and required in _FLOORS and Version(match[1]) < Version(_FLOORS[required])


class _Bounds(NamedTuple):
    """The bounds of a range: version and operator, and what it excludes."""

    lower: tuple[Version, str] | None
    upper: tuple[Version, str] | None
    excluded: frozenset[str]


def loosest(texts: Iterable[str], *, is_series: bool) -> str:
    """Return a range that holds all of some ranges; with `is_series` a pin counts as one to its series."""
    bounds = [_bounds(text, is_series=is_series) for text in texts]
    lowers, uppers = [each.lower for each in bounds], [each.upper for each in bounds]
    lower = None if None in lowers else min(filter(None, lowers))
    upper = None if None in uppers else max(filter(None, uppers))
    excluded = frozenset.intersection(*(each.excluded for each in bounds))
    if lower and upper:
        if lower[0] == upper[0]:
            return f"=={lower[0]}"
        if lower[1] == ">=" and upper[1] == "<" and _is_series(lower[0], upper[0]):
            return f"=={lower[0]}.*"
    clauses = [f"{operator}{version}" for version, operator in filter(None, (lower, upper))]
    return ",".join([*clauses, *(f"!={version}" for version in sorted(excluded))])


def _is_series(lower: Version, upper: Version) -> bool:
    *series, last = lower.release
    return lower.post is None and (*series, last + 1) == upper.release


def _bounds(text: str, *, is_series: bool) -> _Bounds:
    lowers: list[tuple[Version, str]] = []
    uppers: list[tuple[Version, str]] = []
    excluded: set[str] = set()
    for clause in SpecifierSet(text):
        lower, upper = _span(clause, is_series=is_series)
        lowers += [lower] if lower else []
        uppers += [upper] if upper else []
        excluded |= {clause.version} if clause.operator == "!=" else set()
    return _Bounds(max(lowers, default=None), min(uppers, default=None), frozenset(excluded))


def _span(
    clause: Specifier, *, is_series: bool
) -> tuple[tuple[Version, str] | None, tuple[Version, str] | None]:
    """Return the lower and the upper bound that a clause sets."""
    operator, text = clause.operator, clause.version
    version = Version(text.removesuffix(".*"))
    if operator == "~=":
        return (_release_of(version), ">="), (
            Version(following(".".join(map(str, version.release[:-1])))),
            "<",
        )
    if operator == "==":
        numbers = version.release if text.endswith(".*") else version.release[:2] if is_series else ()
        if len(numbers) > 1 or (numbers and text.endswith(".*")):
            series = ".".join(map(str, numbers))
            return (Version(series), ">="), (Version(following(series)), "<")
        return (version, ">="), (version, "<=")
    if operator in (">", ">="):
        return (version if version.pre and version.pre[0] == "a" else _release_of(version), operator), None
    return None, (_release_of(version), operator) if operator in ("<", "<=") else None


def _release_of(version: Version) -> Version:
    """Return a version without the mark of a candidate: rows are about releases."""
    post = "" if version.post is None else f".post{version.post}"
    return Version(f"{version.base_version}{post}")


def _of_tags(facts: Mapping[str, Any]) -> str:
    return str(facts.get("tags") or "")


def _of_python(facts: Mapping[str, Any]) -> str:
    """Return the Pythons of Requires-Python; empty if it leaves out only ones before 3.8."""
    clauses = list(SpecifierSet(facts.get("python") or ""))
    floors = [Version(clause.version) for clause in clauses if clause.operator in (">=", "~=")]
    uppers = [
        clause for clause in clauses if clause.operator in ("<", "<=") and clause.version.startswith("3.")
    ]
    if not floors:
        return ""
    floor = ".".join(map(str, (*floors[0].release, 0)[:2]))
    if not uppers:
        return f">={floor}" if Version(floor) >= Version("3.8") else ""
    major, minor, *patch = Version(uppers[0].version).release
    is_before = uppers[0].operator == "<" and not any(patch)
    return f">={floor},<{major}.{minor if is_before else minor + 1}"
