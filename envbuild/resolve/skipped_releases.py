"""Warns of releases that a resolution skips without a word: uv takes an older one rather than none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuild.events import Warned
from envbuild.resolve.distributions import DistFile, Resolution

_LONG = timedelta(days=365)
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


def warnings(
    resolution: Resolution,
    *,
    files: Mapping[str, Sequence[DistFile]],
    newest: Mapping[str, Sequence[DistFile]],
    from_source: Collection[str],
    cost_of_pin: Callable[[str, str], Cost],
) -> Iterator[Warned]:
    """Yield a warning for each distribution of which a newer or final release is skipped.

    That is a requested one that appeared more than a year before the newest release, as the index says, and a
    pre-release that no request names. What a request itself excludes is asked for.

    `files` has the files of the resolution, `newest` those of the newest releases, by distribution.
    `from_source` are the distributions that the spec builds. `cost_of_pin` returns what another version of a
    distribution would cost.
    """
    skipped = list(_skipped(resolution, files, newest, cost_of_pin))
    to_build = {name for entry in skipped if entry.cost for name in entry.cost.without_wheels}
    key = f"`from_source: [{', '.join(sorted({*from_source, *to_build}))}]` under `packages`"
    for entry in skipped:
        name, cost = entry.name, entry.cost
        asks = f"`{name}=={entry.newest}` in the spec asks for that one"
        requests = f"{asks}, `{name}=={entry.version}` accepts this one"
        if cost is not None and cost.without_wheels:
            hint = f"{key} builds what has no wheel; `-v` says why"
        else:
            hint = f"`{name}=={entry.newest}` asks for that; `-v` says why"
        yield Warned(
            text=f"`{name}` is at {entry.version}, {entry.remark}",
            hint=hint,
            detail=f"with {entry.newest}: {cost.text}; {requests}" if cost is not None else requests,
        )


def _skipped(
    resolution: Resolution,
    files: Mapping[str, Sequence[DistFile]],
    newest: Mapping[str, Sequence[DistFile]],
    cost_of_pin: Callable[[str, str], Cost],
) -> Iterator[_Skipped]:
    versions = resolution.versions
    bounds: dict[str, SpecifierSet] = {}
    for entry in (*resolution.requirements, *resolution.constraints):
        bounds[entry.name] = bounds.get(entry.name, SpecifierSet()) & entry.requirement.specifier
    requested = {entry.name for entry in resolution.requirements}
    reasons = 0
    for name, newest_files in sorted(newest.items()):
        if not newest_files or Version(newest_files[0].version) == Version(versions[name]):
            continue
        version, bound, latest = versions[name], bounds.get(name, SpecifierSet()), newest_files[0].version
        if not bound.contains(latest):
            continue
        if Version(version).is_prerelease and not Version(latest).is_prerelease and not bound.prereleases:
            remark = f"a pre-release that nothing asks for; the newest is {latest}"
        elif name in requested and _is_much_older(files.get(name, ()), newest_files):
            remark = f"much older than the newest release, {latest}"
        else:
            continue
        reasons += 1
        cost = cost_of_pin(name, latest) if reasons <= _MAX_REASONS else None
        yield _Skipped(name=name, version=version, newest=latest, remark=remark, cost=cost)


def _is_much_older(files: Sequence[DistFile], others: Sequence[DistFile]) -> bool:
    """Whether a release appeared long before another; False if the index says not when."""
    first, second = (
        min((file.uploaded for file in release if file.uploaded), default=None) for release in (files, others)
    )
    return first is not None and second is not None and second - first > _LONG
