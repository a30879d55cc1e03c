"""Judges releases that a resolution skips without a word: uv takes an older one rather than none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.version import Version

from envbuild.errors import some
from envbuild.events import Warned
from envbuild.resolve.distributions import DistFile, Resolution, asking_chain, asking_path, best_wheel
from envbuild.spec.python_request import PythonRequest

_LONG = timedelta(days=365)
_PLACEHOLDERS = ("0", "0.0", "0.0.0", "0.0.1")
_MAX_REASONS = 10  # each is another resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The reason why a release is not chosen."""

    text: str
    without_wheels: frozenset[str] = frozenset()
    """Distributions that it needs and that have no wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skipped:
    name: str
    version: str
    newest: str
    remark: str
    cost: Cost | None
    """None if there are too many to resolve each again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Releases that are old, pre-releases or placeholders, and that no request names."""

    warnings: tuple[Warned, ...] = ()
    unbuilt: Mapping[str, str] = field(default_factory=dict)
    """Distribution that is taken only since newer releases have, or need, no wheel → a line on it."""
    asking: tuple[str, ...] = ()
    """Requested distributions that lead to these."""
    accepted: tuple[str, ...] = ()
    """Requirements that ask for these releases."""
    without_wheels: frozenset[str] = frozenset()
    """Distributions that the newer releases need, or are, and that have no wheel."""


def judge(
    resolution: Resolution,
    *,
    files: Mapping[str, Sequence[DistFile]],
    newest: Mapping[str, Sequence[DistFile]],
    request: PythonRequest,
    cost_of_pin: Callable[[str, str], Cost],
) -> Judgement:
    """Return what to say of each distribution of which a newer or final release is skipped.

    That is one that appeared more than a year before the newest release, as the index says, if it is
    requested or its newest release has no wheel; and a pre-release that no request names. What a request
    itself excludes is asked for.

    `files` has the files of the resolution, `newest` those of the newest releases, by distribution.
    `cost_of_pin` returns what another version of a distribution would cost.
    """
    skipped = list(_skipped(resolution, files, newest, request.target.tags, cost_of_pin))
    unbuilt = {entry.name: entry for entry in skipped if entry.cost is not None and entry.cost.without_wheels}
    via = {entry.name: entry.via for entry in resolution.distributions}
    paths = {name: asking_path(name, via, request) for name in unbuilt}
    return Judgement(
        warnings=(
            *(_warning(entry) for entry in skipped if entry.name not in unbuilt),
            *_doubtful(resolution, newest),
        ),
        unbuilt={name: _line(entry, asking_chain(paths[name], request)) for name, entry in unbuilt.items()},
        asking=tuple(path[-1] for path in paths.values()),
        accepted=tuple(f"{entry.name}=={entry.version}" for entry in unbuilt.values()),
        without_wheels=frozenset(
            name for entry in unbuilt.values() if entry.cost for name in entry.cost.without_wheels
        ),
    )


def _warning(entry: _Skipped) -> Warned:
    name, cost = entry.name, entry.cost
    requests = (
        f"`{name}=={entry.newest}` in the spec asks for that one, `{name}=={entry.version}` accepts this one"
    )
    return Warned(
        text=f"`{name}` is at {entry.version}, {entry.remark}",
        hint=f"`{name}=={entry.newest}` asks for that; `-v` says why",
        detail=f"with {entry.newest}: {cost.text}; {requests}" if cost is not None else requests,
    )


def _line(entry: _Skipped, asked: str) -> str:
    lacking = sorted(entry.cost.without_wheels - {entry.name}) if entry.cost else []
    others = some([f"`{name}`" for name in lacking])
    reason = f"{entry.newest} needs {others}, without a wheel" if others else f"{entry.newest} has no wheel"
    kind = "a pre-release" if Version(entry.version).is_prerelease else "much older"
    return f"{asked}: {reason}, and {entry.version} is {kind}"


def _skipped(
    resolution: Resolution,
    files: Mapping[str, Sequence[DistFile]],
    newest: Mapping[str, Sequence[DistFile]],
    accepted: Sequence[Tag],
    cost_of_pin: Callable[[str, str], Cost],
) -> Iterator[_Skipped]:
    versions, requested, bounds = resolution.versions, _requested(resolution), _bounds(resolution)
    reasons = 0
    # The reasons of what is requested are asked for first.
    for name in sorted(newest, key=lambda name: (name not in requested, name)):
        newest_files = newest[name]
        if not newest_files or Version(newest_files[0].version) == Version(versions[name]):
            continue
        version, bound, latest = versions[name], bounds.get(name, SpecifierSet()), newest_files[0].version
        if not bound.contains(latest):
            continue
        has_wheel = best_wheel([file for file in newest_files if file.is_wheel], accepted) is not None
        if Version(version).is_prerelease and not Version(latest).is_prerelease and not bound.prereleases:
            remark, is_older = f"a pre-release that nothing asks for; the newest is {latest}", False
        elif (name in requested or not has_wheel) and _is_much_older(files.get(name, ()), newest_files):
            remark, is_older = f"much older than the newest release, {latest}", True
        else:
            continue
        reasons += 1
        cost = cost_of_pin(name, latest) if reasons <= _MAX_REASONS else None
        lacks_wheel = cost is not None and name in cost.without_wheels
        if is_older and name not in requested and not lacks_wheel:
            continue  # what needs it does not admit the newest
        yield _Skipped(name=name, version=version, newest=latest, remark=remark, cost=cost)


def _doubtful(resolution: Resolution, newest: Mapping[str, Sequence[DistFile]]) -> Iterator[Warned]:
    """Yield a warning for each requested distribution without another release than a doubtful one."""
    versions, bounds = resolution.versions, _bounds(resolution)
    for name in sorted(_requested(resolution) & newest.keys()):
        version, is_bound = Version(versions[name]), bool(bounds.get(name))
        if is_bound or not newest[name] or Version(newest[name][0].version) != version:
            continue
        if version.is_prerelease:
            remark = "a pre-release, as all its releases are"
        elif version.base_version in _PLACEHOLDERS:
            remark = "its newest release: that is often a placeholder for a name"
        else:
            continue
        hint = f"`{name}=={versions[name]}` in the spec says that it is meant"
        yield Warned(text=f"`{name}` is at {versions[name]}, {remark}", hint=hint)


def _requested(resolution: Resolution) -> set[str]:
    return {entry.name for entry in resolution.requirements}


def _bounds(resolution: Resolution) -> dict[str, SpecifierSet]:
    bounds: dict[str, SpecifierSet] = {}
    for entry in (*resolution.requirements, *resolution.constraints):
        bounds[entry.name] = bounds.get(entry.name, SpecifierSet()) & entry.requirement.specifier
    return bounds


def _is_much_older(files: Sequence[DistFile], others: Sequence[DistFile]) -> bool:
    """Whether a release appeared long before another; by their numbers if the index says not when."""
    first, second = (
        min((file.uploaded for file in release if file.uploaded), default=None) for release in (files, others)
    )
    if first is not None and second is not None:
        return second - first > _LONG
    return bool(files and others) and Version(files[0].version).major < Version(others[0].version).major
