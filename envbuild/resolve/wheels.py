"""Distributions as reported by uv and pip, and the choice of a wheel. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from envbuild.lock.model import PythonPin


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedDistribution:
    """One distribution of a resolution."""

    name: str
    """Canonical name."""
    version: str
    via: tuple[str, ...] = ()
    """Canonical names of the distributions that require it, apart from the request itself."""
    origin: str = ""
    """Logical origin; empty if only its file shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A wheel or source archive, and where it is."""

    name: str
    version: str
    file: str
    address: str
    """May hold credentials."""
    sha256: str
    size_bytes: int | None = None
    """None if the index does not say."""
    uploaded: datetime | None = None
    """When it appeared in the index, in UTC; None if the index does not say."""

    @property
    def is_wheel(self) -> bool:
        """Whether it can be installed as it is."""
        return self.file.endswith(".whl")

    def is_same(self, pin: PythonPin) -> bool:
        """Whether it is the locked file, wherever it is."""
        return (self.file, self.sha256) == (pin.file, pin.sha256)


def best(wheels: Sequence[Candidate], accepted: Sequence[Tag]) -> Candidate | None:
    """Return the wheel that fits best: by tag, then by build number, then by file name."""
    rank = {tag: number for number, tag in reversed(list(enumerate(accepted)))}

    def key(wheel: Candidate) -> tuple[int, tuple[int, str], str]:
        _, _, build, own_tags = parse_wheel_filename(wheel.file)
        number, text = build or (0, "")
        nearest = min((rank[tag] for tag in own_tags if tag in rank), default=len(rank))
        return (-nearest, (number, text), wheel.file)

    fitting = [wheel for wheel in wheels if -key(wheel)[0] < len(rank)]
    return max(fitting, key=key, default=None)


def satisfies(file: str, requirement: Requirement, accepted: Sequence[Tag]) -> bool:
    """Return whether a file name is that of a wheel that meets a requirement and can be installed."""
    try:
        name, version, _, own_tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    meets = requirement.specifier.contains(version, prereleases=True)
    return meets and name == canonicalize_name(requirement.name) and not own_tags.isdisjoint(accepted)
