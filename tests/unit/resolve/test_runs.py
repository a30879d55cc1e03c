"""uv and pip name one error and stop: how often they are asked is limited, and what is left is counted."""

from __future__ import annotations

import re
import tomllib
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


class Runs:
    """Stands for uv and pip: of what is asked, the first is missing."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.known: set[str] = set()
        self.pattern = "error: No solution found\n  cause: Because {} was not found in the registry\n"

    def run(self, argv: Sequence[str | Path], *, cwd: Path = Path(), **_: Any) -> object:
        if cwd != Path():
            requests = tomllib.loads((cwd / "pyproject.toml").read_text())["project"]["dependencies"]
        else:
            requests = [word for word in map(str, argv) if "==" in word]
        self.asked.append(requests)
        names = [re.split("[=<>]", text)[0] for text in requests]
        missing = [name for name in names if name not in self.known]
        stderr = self.pattern.format(missing[0]) if missing else ""
        if not missing and "--output-file" in argv:
            Path(argv[argv.index("--output-file") + 1]).write_text(f"{names[0]}==1.5\n")
        return process.Finished(argv=("uv",), code=len(missing[:1]), stdout="", stderr=stderr)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(process, "run", runs.run)
    return runs


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def context(tmp_path: Path, events: list[Event]) -> ResolveContext:
    files = FileCache(tmp_path / "files")
    return ResolveContext(machine=Machine(), cache_dir=tmp_path / "c", files=files, emit=events.append)


@pytest.mark.redteam
def test_unknown_names_are_searched_for_a_limited_number_of_times(
    runs: Runs, context: ResolveContext, events: list[Event]
) -> None:
    with pytest.raises(EnvbuildError) as caught:
        resolve(context, *NAMES)
    problems = [error.problem for error in caught.value.each()]
    assert len(runs.asked) == 20
    assert len(problems) == 21
    assert [name for name in NAMES if any(name in problem for problem in problems)] == NAMES[:20]
    assert "80 other requirements may have errors, too" in problems
    assert [event.title for event in events if isinstance(event, TaskStarted)] == ["look for further errors"]


def test_all_errors_are_found_if_there_are_few(runs: Runs, context: ResolveContext) -> None:
    runs.known = {*NAMES} - {*NAMES[:5]}
    with pytest.raises(EnvbuildError) as caught:
        resolve(context, *NAMES)
    assert len(caught.value.each()) == 5
    assert len(runs.asked) == 6


def test_nearest_versions_are_asked_for_a_few(runs: Runs, context: ResolveContext) -> None:
    requests = [f"{name}==9" for name in NAMES]
    with pytest.raises(EnvbuildError):
        resolve(context, *requests)
    assert len(runs.asked) == 20 + 2 * 5


def test_files_that_are_not_located_are_an_error(runs: Runs, context: ResolveContext) -> None:
    """An empty answer would say that none of them has a wheel."""
    with pytest.raises(EnvbuildError, match="80 other requirements may have errors"):
        index(context).files(dict.fromkeys(NAMES, "1"))
    assert len(runs.asked) == 20


def test_what_import_cannot_find_out_is_unknown(runs: Runs) -> None:
    sources = PythonSources(indexes=("https://index.example.org/simple",))
    target = target_of(base_image(), "amd64")
    assert without_wheels(NAMES, sources, target) is None
    assert len(runs.asked) == 20
    runs.known = {*NAMES[3:]}
    assert without_wheels(NAMES, sources, target) == {*NAMES[:3]}
    assert without_wheels(NAMES[:3], sources, target) == {*NAMES[:3]}


def test_pip_is_asked_a_limited_number_of_times(runs: Runs, context: ResolveContext) -> None:
    python = BasePython(version="2.7", abi="cp27mu")
    runs.pattern = "ERROR: No matching distribution found for {}==1\n"
    request = resolved(base=base_image(python=python, glibc="2.31")).python
    resolver = Python27(request, PythonSources(), context)
    with pytest.raises(RequestError, match=r"unknown-000, .* have no wheel, and 80 others are not examined"):
        resolver.files(dict.fromkeys(NAMES, "1"))
    assert len(runs.asked) == 20


def test_reasons_for_older_releases_are_asked_for_a_few() -> None:
    asked: list[str] = []

    def cost_of_pin(name: str, _: str) -> str:
        asked.append(name)
        return "older others"

    warnings = [
        *skipped_releases.warnings(
            Resolution(
                requirements=resolved(python=NAMES).python.requirements,
                constraints=(),
                distributions=tuple(ResolvedDistribution(name=name, version="2.0rc1") for name in NAMES),
            ),
            files={},
            newest={name: [file_of(name, "2.0")] for name in NAMES},
            cost_of_pin=cost_of_pin,
        )
    ]
    assert len(warnings) == len(NAMES)
    assert asked == NAMES[:10]
    assert warnings[9].text.endswith("With 2.0: older others")
    assert warnings[10].text.endswith("The newest is 2.0")
