"""The work of locking grows with the number of requirements, not with its square: parses are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from envbuild.lock.diff import diff
from envbuild.resolve.python import pin_files
from envbuild.resolve.wheels import Candidate, ResolvedDistribution
from envbuild.spec.resolved import ResolvedSpec
from tests.support.resolved_specs import resolved, wheel, whole_lock

FILES = 60


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    count = 0
    parse = Requirement.__init__

    def counted(self: Requirement, text: str) -> None:
        nonlocal count
        count += 1
        parse(self, text)

    monkeypatch.setattr(Requirement, "__init__", counted)

    def of(function: Callable[[], object]) -> int:
        nonlocal count
        count = 0
        function()
        return count

    return of


@dataclass
class Index:
    """A resolver whose index has the same number of files of each distribution."""

    resolved: ResolvedSpec
    sources: Any = None
    context: Any = field(default_factory=lambda: SimpleNamespace(offline=False))

    def locate(self, versions: dict[str, str]) -> dict[str, list[Candidate]]:
        return {
            name: [
                Candidate(
                    name=name,
                    version=version,
                    file=f"{name}-{version}-py3-none-manylinux_2_{minor}_x86_64.whl",
                    address="x",
                    sha256=f"{minor:064x}",
                    size_bytes=1,
                )
                for minor in range(FILES)
            ]
            for name, version in versions.items()
        }


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def lock_of(count: int) -> Callable[[], object]:
    spec = resolved(python=[f"{name}>=1" for name in names(count)])
    pins = tuple(wheel(name, "1.0") for name in names(count))
    lock = replace(whole_lock(), python=pins, requests=spec.python_requests(), recipes=())
    return lambda: diff(lock, spec)


def files_of(count: int) -> Callable[[], object]:
    spec = resolved(python=[f"{name}>=1" for name in names(count)])
    entries = [ResolvedDistribution(name=name, version="1.0", origin="pypi") for name in names(count)]
    return lambda: pin_files(Index(spec), entries, entries)  # type: ignore[arg-type]


@pytest.mark.parametrize("work", [lock_of, files_of])
def test_requirements_are_parsed_once(
    work: Callable[[int], Callable[[], object]], parses: Callable[[Callable[[], object]], int]
) -> None:
    few, many = parses(work(20)), parses(work(40))
    assert many <= 2 * few + 5
    assert many <= 40 * 4
