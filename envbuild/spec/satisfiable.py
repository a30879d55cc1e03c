"""Whether any version at all can meet a constraint."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def can_be_met(constraint: SpecifierSet) -> bool:
    """Return whether some version meets a constraint.

    A constraint is a union of intervals whose ends are the versions that it
    names; so it is enough to try those, their neighbours, and the lowest
    version of all. Says True where it cannot tell (``===``).
    """
    if any(part.operator == "===" for part in constraint):
        return True
    if not len(constraint):
        return True
    try:
        named = [Version(part.version.removesuffix(".*")) for part in constraint]
    except InvalidVersion:
        return True
    longest = max(len(version.release) for version in named)
    return any(
        constraint.contains(candidate, prereleases=True)
        for version in named
        for candidate in _neighbours(version, longest)
    )


def _neighbours(version: Version, longest: int) -> Iterator[Version]:
    yield version
    epoch = f"{version.epoch}!"
    release = list(version.release)
    padding = [0] * (longest + 1 - len(release))
    # Longer than any named version, so that no `!=` takes it away.
    yield Version(epoch + ".".join(map(str, [*release, *padding, 1])))
    yield Version(epoch + ".".join(map(str, [*release[:-1], release[-1] + 1])))
    public = Version(version.public)
    base = epoch + ".".join(map(str, release))
    pre = "".join(map(str, public.pre)) if public.pre else ""
    if public.pre:
        yield Version(f"{base}{public.pre[0]}{public.pre[1] + 1}")
    yield Version(f"{base}{pre}.post{(public.post or 0) + 1}")
    if public.dev is not None:
        post = f".post{public.post}" if public.post is not None else ""
        yield Version(f"{base}{pre}{post}.dev{public.dev + 1}")
    yield Version(f"{epoch}0")
