"""uv and pip name one error and stop: how often they are asked is limited, and what is left is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, RequestError
from envbuild.events import Event, TaskStarted
from envbuild.resolve import skipped_releases
from envbuild.resolve.context import ResolveContext
from envbuild.resolve.distributions import DistFile, Resolution, ResolvedDistribution
from envbuild.resolve.files import FileCache
from envbuild.resolve.index import Index, without_wheels
from envbuild.resolve.origins import Machine, PythonSources
from envbuild.resolve.python27 import Python27
from envbuild.spec.base import BasePython
from envbuild.spec.python_platform import target_of
from envbuild.system import process
from tests.support.fake_uv import FakeUv
from tests.support.resolved_specs import base_image, resolved

NAMES = [f"unknown-{number:03}" for number in range(100)]


def file_of(name: str, version: str) -> DistFile:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return DistFile(name=name, version=version, file_name=file, address="x", sha256="0" * 64)


def index(context: ResolveContext, *requirements: str) -> Index:
    return Index(resolved(python=requirements).python, PythonSources(), context)


def resolve(context: ResolveContext, *requirements: str) -> None:
    asked = index(context, *requirements)
    asked.resolve(asked.request.requirements, preferred_versions={})


class Pip:
    """Stands for pip: of what is asked, the first is missing."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []

    def run(self, argv: Sequence[str | Path], **_: Any) -> process.Finished:
        self.runs.append([word for word in map(str, argv) if "==" in word])
        name = self.runs[-1][0].partition("==")[0]
        stderr = f"ERROR: No matching distribution found for {name}==1\n"
        return process.Finished(argv=("pip",), code=1, stdout="", stderr=stderr)


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> FakeUv:
    uv = FakeUv({})
    monkeypatch.setattr(process, "run", uv.run)
    return uv


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(tmp_path: Path, events: list[Event]) -> ResolveContext:
    files = FileCache(tmp_path / "files")
    return ResolveContext(machine=Machine(), cache_dir=tmp_path / "c", files=files, emit=events.append)


@pytest.mark.redteam
def test_unknown_names_are_searched_for_a_limited_number_of_times(
    uv: FakeUv, context: ResolveContext, events: list[Event]
) -> None:
    with pytest.raises(EnvbuildError) as caught:
        resolve(context, *NAMES)
    problems = [error.problem for error in caught.value.each()]
    assert len(uv.runs) == 20
    assert len(problems) == 21
    assert [name for name in NAMES if any(name in problem for problem in problems)] == NAMES[:20]
    assert "80 other requirements may have errors, too" in problems
    assert [event.title for event in events if isinstance(event, TaskStarted)] == ["look for further errors"]


def test_packages_without_wheels_are_searched_for_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch, context: ResolveContext
) -> None:
    runs: list[str] = []

    def run(argv: Sequence[str | Path], **_: Any) -> process.Finished:
        name = NAMES[len(runs)]
        runs.append(name)
        stderr = (
            "error: No solution found when resolving dependencies\n"
            f"  cause: Because {name} has no usable wheels and envbuild-request depends on {name}, we can"
            " conclude that your requirements are unsatisfiable.\n\n"
            f"hint: Wheels are required for `{name}` because building from source is disabled\n"
        )
        return process.Finished(argv=("uv",), code=1, stdout="", stderr=stderr)

    monkeypatch.setattr(process, "run", run)
    with pytest.raises(EnvbuildError) as caught:
        resolve(context, *NAMES[:50])
    lacking, more = caught.value.each()
    assert len(runs) == 20
    assert f"`from_source: [{', '.join(NAMES[:20])}]`" in str(lacking.hint)
    assert more.problem == "perhaps more packages have no wheel"
    assert more.hint == "correct these first: uv reports one at a time, and was asked 20 times"


def test_all_errors_are_found_if_there_are_few(uv: FakeUv, context: ResolveContext) -> None:
    uv.releases = dict.fromkeys(NAMES[5:], "1.5")
    with pytest.raises(EnvbuildError) as caught:
        resolve(context, *NAMES)
    assert len(caught.value.each()) == 5
    assert len(uv.runs) == 6


def test_nearest_versions_are_asked_for_a_few(uv: FakeUv, context: ResolveContext) -> None:
    requests = [f"{name}==9" for name in NAMES]
    with pytest.raises(EnvbuildError):
        resolve(context, *requests)
    assert len(uv.runs) == 20 + 2 * 5


def test_files_that_are_not_located_are_an_error(uv: FakeUv, context: ResolveContext) -> None:
    """An empty answer would say that none of them has a wheel."""
    with pytest.raises(EnvbuildError, match="80 other requirements may have errors"):
        index(context).files(dict.fromkeys(NAMES, "1"))
    assert len(uv.runs) == 20


def test_what_import_cannot_find_out_is_unknown(uv: FakeUv) -> None:
    sources = PythonSources(indexes=("https://index.example.org/simple",))
    target = target_of(base_image(), "amd64")
    assert without_wheels(NAMES, sources, target) is None
    assert len(uv.runs) == 20
    uv.releases = dict.fromkeys(NAMES[3:], "1.5")
    assert without_wheels(NAMES, sources, target) == {*NAMES[:3]}
    assert without_wheels(NAMES[:3], sources, target) == {*NAMES[:3]}


def test_pip_is_asked_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch, context: ResolveContext
) -> None:
    pip = Pip()
    monkeypatch.setattr(process, "run", pip.run)
    python = BasePython(version="2.7", abi="cp27mu")
    request = resolved(base=base_image(python=python, glibc="2.31")).python
    resolver = Python27(request, PythonSources(), context)
    with pytest.raises(RequestError, match=r"unknown-000, .* have no wheel, and 80 others are not examined"):
        resolver.files(dict.fromkeys(NAMES, "1"))
    assert len(pip.runs) == 20


def test_reasons_for_older_releases_are_asked_for_a_few() -> None:
    asked: list[str] = []

    def cost_of_pin(name: str, _: str) -> skipped_releases.Cost:
        asked.append(name)
        missing = frozenset({name}) if name < NAMES[5] else frozenset()
        return skipped_releases.Cost(text="older others", without_wheels=missing)

    request = resolved(python=NAMES).python
    judgement = skipped_releases.judge(
        Resolution(
            requirements=request.requirements,
            constraints=(),
            distributions=tuple(ResolvedDistribution(name=name, version="2.0rc1") for name in NAMES),
        ),
        files={},
        newest={name: [file_of(name, "2.0")] for name in NAMES},
        request=request,
        cost_of_pin=cost_of_pin,
    )
    assert asked == NAMES[:10]
    assert [*judgement.unbuilt] == NAMES[:5]
    assert judgement.without_wheels == {*NAMES[:5]}
    assert len(judgement.warnings) == len(NAMES) - 5
    assert "with 2.0: older others" in judgement.warnings[4].detail
    assert "with 2.0" not in judgement.warnings[5].detail
    assert judgement.warnings[5].text.endswith("the newest is 2.0")
