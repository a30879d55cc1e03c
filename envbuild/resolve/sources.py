"""The interfaces of what offers distributions: sources of single ones, and a resolver for all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from envbuild.errors import EnvbuildError
from envbuild.events import Warned
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import Upgrade
from envbuild.resolve.distributions import DistFile, ResolvedDistribution
from envbuild.resolve.uv import UvRequest
from envbuild.spec.requirements import RequirementEntry


class Source(Protocol):
    """Where single distributions come from, in place of an index."""

    def owns(self, name: str) -> bool:
        """Return whether a distribution comes from here alone."""

    def origin(self, name: str) -> str:
        """Return the logical origin of a distribution that comes from here."""

    def prepare(self, previous: Sequence[PythonPin], upgrade: Upgrade) -> Iterator[EnvbuildError]:
        """Bring the files to this machine, for a resolution; yield what keeps them from it.

        `previous` are the pins of the last lock.
        """

    def add_to(self, request: UvRequest) -> UvRequest:
        """Return a request by which uv knows what comes from here; `prepare` was called."""

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the files of those distributions that come from here."""

    def remake(self, pin: PythonPin) -> bool:
        """Make a locked file again and put it into the cache; return False if it is to be downloaded.

        RequestError: the file cannot be made, or has other bytes.
        """


class Resolver(Protocol):
    """Chooses versions, and knows the files of all distributions that no `Source` owns."""

    def resolve(
        self,
        requirements: Sequence[RequirementEntry],
        *,
        constraints: Sequence[RequirementEntry] = (),
        preferred_versions: Mapping[str, str],
    ) -> tuple[ResolvedDistribution, ...]:
        """Choose a version of each distribution that requirements need; `constraints` bound versions.

        RequestError: requirements clash. MachineError: an index cannot be reached.
        """

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the files of exact versions; none of a version that no index has."""

    def origin_of(self, file: DistFile) -> str:
        """Return the logical origin of one of these files."""

    def skipped_releases(
        self,
        requirements: Sequence[RequirementEntry],
        constraints: Sequence[RequirementEntry],
        versions: Mapping[str, str],
        *,
        new: Sequence[str],
        files: Mapping[str, Sequence[DistFile]],
    ) -> Iterator[Warned]:
        """Yield a warning for each of the `new` distributions whose newer or final release was not taken.

        `versions` and `files` are those of the resolution.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributions:
    """All distributions that an image can get."""

    sources: tuple[Source, ...]
    resolver: Resolver

    def source_of(self, name: str) -> Source | None:
        """Return the source that owns a distribution; None if it comes from an index."""
        return next((source for source in self.sources if source.owns(name)), None)

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the files of exact versions, by distribution."""
        files: dict[str, list[DistFile]] = {}
        for source in self.sources:
            files |= source.files({name: text for name, text in versions.items() if source.owns(name)})
        return files | self.resolver.files({name: versions[name] for name in versions if name not in files})

    def origin_of(self, entry: ResolvedDistribution, file: DistFile) -> str:
        """Return the logical origin of a file that was chosen for a distribution."""
        source = self.source_of(entry.name)
        if source is not None:
            return source.origin(entry.name)
        return entry.origin or self.resolver.origin_of(file)
