"""Warns of releases that a resolution skips without a word: uv takes an older one rather than none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuild.events import Warned
from envbuild.resolve.distributions import DistFile, Resolution

_LONG = timedelta(days=365)
_MAX_REASONS = 10  # each is another resolution


def warnings(
    resolution: Resolution,
    *,
    files: Mapping[str, Sequence[DistFile]],
    newest: Mapping[str, Sequence[DistFile]],
    cost_of_pin: Callable[[str, str], str],
) -> Iterator[Warned]:
    """Yield a warning for each distribution of which a newer or final release is skipped.

    That is a requested one that appeared more than a year before the newest release, as the index says, and a
    pre-release that no request names. What a request itself excludes is asked for.

    `files` has the files of the resolution, `newest` those of the newest releases, by distribution.
    `cost_of_pin` returns what another version of a distribution would cost.
    """
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
            remark = "a pre-release that nothing asks for"
        elif name in requested and _is_much_older(files.get(name, ()), newest_files):
            remark = "much older than the newest release"
        else:
            continue
        text = f"`{name}` is at {version}, {remark}. "
        reasons += 1
        if reasons <= _MAX_REASONS:
            text += f"With {latest}: {cost_of_pin(name, latest)}"
        else:
            text += f"The newest is {latest}"
        yield Warned(
            text=text,
            hint=f"`{name}=={latest}` in the spec asks for that one, `{name}=={version}` accepts this one; "
            "`from_source` under `packages` builds what has no wheel",
        )


def _is_much_older(files: Sequence[DistFile], others: Sequence[DistFile]) -> bool:
    """Whether a release appeared long before another; False if the index says not when."""
    first, second = (
        min((file.uploaded for file in release if file.uploaded), default=None) for release in (files, others)
    )
    return first is not None and second is not None and second - first > _LONG
