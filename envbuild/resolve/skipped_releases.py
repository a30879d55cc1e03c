"""Warn of releases that a resolution passes over without a word: uv takes an older one rather than none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuild.events import Warned
from envbuild.resolve.uv import Uv
from envbuild.resolve.wheels import Candidate, ResolvedDistribution

_LONG = timedelta(days=365)
_MAX_REASONS = 10  # each is another resolution


def warnings(
    requests: Sequence[str],
    constraints: Sequence[str],
    resolution: Sequence[ResolvedDistribution],
    uv: Uv,
    *,
    kept: Mapping[str, str],
) -> Iterator[Warned]:
    """Yield a warning for each distribution of which a newer or final release is passed over.

    That is a requested one that appeared more than a year before the newest release, as the index says, and a
    pre-release that no request names. What a request itself excludes, and what a lock keeps, is asked for.

    `kept` has the versions of an earlier lock. MachineError: an index cannot be reached.
    """
    bounds: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, (*requests, *constraints)):
        bounded = canonicalize_name(requirement.name)
        bounds[bounded] = bounds.get(bounded, SpecifierSet()) & requirement.specifier
    asked = {canonicalize_name(Requirement(text).name) for text in requests}
    versions = {entry.name: entry.version for entry in resolution}
    own = {*uv.local_wheels, *uv.packed}
    new = sorted(name for name, version in versions.items() if kept.get(name) != version and name not in own)
    releases = {name: files for name, files in uv.newest(new).items() if files}
    others = [
        name for name, files in releases.items() if Version(files[0].version) != Version(versions[name])
    ]
    chosen = uv.locate({name: versions[name] for name in others})
    reasons = 0
    for name in sorted(others):
        files, taken, bound = releases[name], versions[name], bounds.get(name, SpecifierSet())
        newest = files[0].version
        if not bound.contains(newest):
            continue
        if Version(taken).is_prerelease and not Version(newest).is_prerelease and not bound.prereleases:
            remark = "a pre-release that nothing asks for"
        elif name in asked and _is_much_older(chosen.get(name, ()), files):
            remark = "much older than the newest release"
        else:
            continue
        text = f"`{name}` is at {taken}, {remark}. "
        reasons += 1
        if reasons <= _MAX_REASONS:
            text += f"With {newest}: {uv.cost_of_pin(requests, constraints, versions, name, newest)}"
        else:
            text += f"The newest is {newest}"
        yield Warned(
            text=text,
            hint=f"`{name}=={newest}` in the spec asks for that one, `{name}=={taken}` accepts this one; "
            "`from_source` under `packages` builds what has no wheel",
        )


def _is_much_older(files: Sequence[Candidate], others: Sequence[Candidate]) -> bool:
    """Whether a release appeared long before another; False if the index says not when."""
    first, second = (
        min((file.uploaded for file in release if file.uploaded), default=None) for release in (files, others)
    )
    return first is not None and second is not None and second - first > _LONG
