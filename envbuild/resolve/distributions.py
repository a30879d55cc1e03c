"""Distributions and their files, and the choice of a file for each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envbuild.errors import EnvbuildError, RequestError, raise_all
from envbuild.lock.model import PythonPin
from envbuild.spec.python_request import PythonRequest
from envbuild.spec.requirements import RequirementEntry


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
class Resolution:
    """Requirements, and the distributions that satisfy them together."""

    requirements: Sequence[RequirementEntry]
    constraints: Sequence[RequirementEntry]
    """Requirements that bound versions and ask for nothing."""
    distributions: tuple[ResolvedDistribution, ...]

    @property
    def versions(self) -> dict[str, str]:
        """Distribution → version."""
        return {entry.name: entry.version for entry in self.distributions}

    @property
    def requires(self) -> dict[str, list[str]]:
        """Distribution → the distributions that it requires."""
        requires: dict[str, list[str]] = {entry.name: [] for entry in self.distributions}
        for entry in self.distributions:
            for name in entry.via:
                requires.setdefault(name, []).append(entry.name)
        return requires


@dataclass(frozen=True, slots=True, kw_only=True)
class DistFile:
    """A wheel or source archive of a distribution, and where it is."""

    directory: ClassVar[str] = "wheels"

    name: str
    version: str
    file_name: str
    sha256: str
    address: str
    """An address, which may hold credentials, or a path."""
    size_bytes: int | None = None
    """None if the index does not say."""
    uploaded: datetime | None = None
    """When it appeared in the index, in UTC; None if the index does not say."""

    @property
    def is_wheel(self) -> bool:
        """Whether it can be installed as it is."""
        return self.file_name.endswith(".whl")

    def is_same(self, pin: PythonPin) -> bool:
        """Whether it is the locked file, wherever it is."""
        return (self.file_name, self.sha256) == (pin.file, pin.sha256)


def asking_path(name: str, via: Mapping[str, Sequence[str]], request: PythonRequest) -> list[str]:
    """Return a distribution, what requires it, and so on to one that is asked for; the shortest such path.

    `via` has the distributions that require each directly. If none leads to a request, it is the first alone.
    """
    asked = {entry.name for entry in (*request.written, *request.of_recipes)}
    paths, seen = [[name]], {name}
    for path in paths:  # the list grows
        if path[-1] in asked:
            return path
        new = [other for other in via.get(path[-1], ()) if other not in seen]
        seen.update(new)
        paths += [[*path, other] for other in new]
    return [name]


def asking_chain(path: Sequence[str], request: PythonRequest) -> str:
    """Return who asks for a distribution, in words: ```a`, which `b` at spec.yaml:3:5 needs``."""
    name, root = path[0], path[-1]
    written = next((entry for entry in request.written if entry.name == root), None)
    recipe = next((entry.recipe for entry in request.of_recipes if entry.name == root), "")
    if written is not None:
        shown = f"`{written.text.strip() if len(path) == 1 else root}` at {written.at}"
    else:
        shown = f"`{root}`" + (f" of the recipe `{recipe}`" if recipe else "")
    if len(path) == 1:
        return shown
    return (
        f"`{name}`" + "".join(f", which `{other}` needs" for other in path[1:-1]) + f", which {shown} needs"
    )


def best_wheel(wheels: Sequence[DistFile], accepted: Sequence[Tag]) -> DistFile | None:
    """Return the wheel that fits best: by tag, then by build number, then by file name."""
    rank = {tag: number for number, tag in reversed(list(enumerate(accepted)))}

    def key(wheel: DistFile) -> tuple[int, tuple[int, str], str]:
        _, _, build, own_tags = parse_wheel_filename(wheel.file_name)
        number, text = build or (0, "")
        nearest = min((rank[tag] for tag in own_tags if tag in rank), default=len(rank))
        return (-nearest, (number, text), wheel.file_name)

    fitting = [wheel for wheel in wheels if -key(wheel)[0] < len(rank)]
    return max(fitting, key=key, default=None)


def satisfies(file_name: str, requirement: Requirement, accepted: Collection[Tag]) -> bool:
    """Return whether a file name is that of a wheel that meets a requirement and can be installed."""
    try:
        name, version, _, own_tags = parse_wheel_filename(file_name)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    meets = requirement.specifier.contains(version, prereleases=True)
    return meets and name == canonicalize_name(requirement.name) and not own_tags.isdisjoint(accepted)


def choose_files(
    request: PythonRequest,
    resolution: Iterable[ResolvedDistribution],
    offered: Mapping[str, Sequence[DistFile]],
    *,
    preferred: Mapping[str, PythonPin] = MappingProxyType({}),
) -> list[DistFile]:
    """Return a file for each distribution: that of its `preferred` pin if it fits, else the best.

    RequestError: a distribution has no file; all such are named.
    """
    hashes = request.hashes
    files: list[DistFile] = []
    errors: list[EnvbuildError] = []
    for entry in resolution:
        is_built = entry.name in request.built
        version = Version(entry.version)
        fitting = [
            file
            for file in offered.get(entry.name, ())
            if file.is_wheel != is_built
            and Version(file.version) == version
            and (entry.name not in hashes or file.sha256 in hashes[entry.name])
        ]
        pin = preferred.get(entry.name)
        locked = [file for file in fitting if pin is not None and file.is_same(pin)]
        if is_built:
            # Other archives of it (`.zip`) hold the same.
            best = next((file for file in (*locked, *fitting) if file.file_name.endswith(".tar.gz")), None)
        else:
            tags = request.target.tags
            best = best_wheel(locked, tags) or best_wheel(fitting, tags)
        if best is not None:
            files.append(best)
            continue
        target = request.target
        missing = f"no wheel for {target.abi} with glibc {target.glibc}"
        missing = "no source archive (.tar.gz)" if is_built else missing
        hint = "ask for another version of it"
        if entry.name in hashes:
            missing += " and one of the hashes that are listed"
            hint = "list the sha256 of a wheel, or remove the hashes: the lock has them"
        problem = f"{entry.name} {entry.version} has {missing}"
        errors.append(RequestError(problem, at=request.location_of(entry.name), hint=hint))
    raise_all(errors)
    return files
