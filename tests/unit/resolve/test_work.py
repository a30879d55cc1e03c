"""The work of locking grows with the number of requirements, not with its square: parses are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envbuild.lock.diff import diff
from envbuild.resolve.context import ResolveContext, Upgrade
from envbuild.resolve.distributions import DistFile, Resolution, ResolvedDistribution
from envbuild.resolve.files import FileCache
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.resolve.python import Distributions, resolve_python
from envbuild.spec.chosen_recipe import ChosenRecipe
from envbuild.system import process
from tests.support.fake_uv import FakeUv
from tests.support.resolved_specs import pytorch, resolved, wheel, whole_lock

FILES = 60
CONTEXT = ResolveContext(
    machine=Machine(), cache_dir=Path("cache"), files=FileCache(Path("files")), emit=lambda event: None
)


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


def files_in_index(versions: dict[str, str]) -> dict[str, list[DistFile]]:
    """Return the same number of files of each distribution."""
    return {
        name: [
            DistFile(
                name=name,
                version=version,
                file_name=f"{name}-{version}-py3-none-manylinux_2_{minor}_x86_64.whl",
                address="x",
                sha256=f"{minor:064x}",
                size_bytes=1,
            )
            for minor in range(FILES)
        ]
        for name, version in versions.items()
    }


@pytest.fixture
def fake_uv(monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    uv = FakeUv({})
    monkeypatch.setattr(process, "run", uv.run)
    return uv


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def lock_of(count: int) -> Callable[[], object]:
    spec = resolved(python=[f"{name}>=1" for name in names(count)])
    pins = tuple(wheel(name, "1.0") for name in names(count))
    lock = replace(whole_lock(), python=pins, requests=spec.python.texts, recipes=())
    return lambda: diff(lock, spec)


def files_of(count: int) -> Callable[[], object]:
    request = resolved(python=[f"{name}>=1" for name in names(count)]).python
    entries = [ResolvedDistribution(name=name, version="1.0", origin="pypi") for name in names(count)]
    offered = files_in_index(dict.fromkeys(names(count), "1.0"))
    resolution = Resolution(requirements=request.requirements, constraints=(), distributions=tuple(entries))
    distributions = Distributions.of(request, PythonSources(), CONTEXT)
    return lambda: distributions.pin(resolution, entries, offered)


@pytest.mark.parametrize("work", [lock_of, files_of])
def test_requirements_are_parsed_once(
    work: Callable[[int], Callable[[], object]], parses: Callable[[Callable[[], object]], int]
) -> None:
    few, many = parses(work(20)), parses(work(40))
    assert many <= 2 * few + 5
    assert many <= 40 * 4


@pytest.mark.parametrize("recipes", [(), (pytorch(),)], ids=["alone", "beside a recipe"])
def test_a_fresh_lock_parses_requirements_once(
    recipes: tuple[ChosenRecipe, ...],
    parses: Callable[[Callable[[], object]], int],
    fake_uv: FakeUv,
    tmp_path: Path,
) -> None:
    context = replace(CONTEXT, cache_dir=tmp_path)
    fake_uv.releases = {**dict.fromkeys(names(80), "1.0"), "torch": "2.13.0+cpu"}

    def lock(count: int) -> Callable[[], object]:
        def work() -> object:
            spec = resolved(python=[f"{name}>=1" for name in names(count)], recipes=recipes)
            return resolve_python(spec, previous=(), upgrade=Upgrade(), context=context)

        return work

    few, many = parses(lock(40)), parses(lock(80))
    assert len(fake_uv.runs) == 2 * 3, "versions, files, and newest releases"
    assert many <= 2 * few + 5
    assert many <= 80 * 2
