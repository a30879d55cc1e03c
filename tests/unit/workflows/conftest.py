"""A build of layers of a few files, whose lock and plan are given, and the user's files of settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import build as workflow
from envbuild.workflows import plan as plan_workflow
from envbuild.workflows.settings import Settings
from tests.support.planned_builds import Bench

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in (workflow, plan_workflow):
        monkeypatch.setattr(module, "lock_spec", lambda *_, **__: made.locked())
        monkeypatch.setattr(module, "plan_image", made.plan)
    monkeypatch.setattr(
        Settings, "find_apptainer", lambda *_: Apptainer(program=Path("/nowhere"), version="1.4.5")
    )
    return made


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own site.yaml."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config/envbuild/site.yaml"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def config(site: Path) -> Path:
    """The user's own config.yaml."""
    return site.with_name("config.yaml")


@pytest.fixture
def run(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(verb: str, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([verb, str(bench.spec), "--store", str(tmp_path / "store"), *words])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call
