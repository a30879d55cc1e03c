"""The interfaces of what offers distributions: sources of single ones, and a resolver for all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from envbuild.errors import EnvbuildError
from envbuild.events import Warned
from envbuild.lock.model import PythonPin
from envbuild.resolve.context import Upgrade
from envbuild.resolve.distributions import DistFile, Resolution
from envbuild.resolve.uv import UvRequest
from envbuild.spec.requirements import RequirementEntry


class Source(Protocol):
    """A source of single distributions, in place of an index."""

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
    ) -> Resolution:
        """Choose a version of each distribution that requirements need; `constraints` bound versions.

        RequestError: requirements clash. MachineError: an index cannot be reached.
        """

    def files(self, versions: Mapping[str, str]) -> dict[str, list[DistFile]]:
        """Return the files of exact versions; none of a version that no index has."""

    def origin_of(self, file: DistFile) -> str:
        """Return the logical origin of one of these files."""

    def skipped_releases(
        self, resolution: Resolution, new: Sequence[str], files: Mapping[str, Sequence[DistFile]]
    ) -> tuple[Warned, ...]:
        """Return a warning for each of the `new` distributions whose newer or final release was not taken.

        RequestError: that is for want of a wheel.

        `files` has the files of the releases that were.
        """
