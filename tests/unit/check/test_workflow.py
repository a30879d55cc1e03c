"""The verb `test`: what it wires together, with the container and the file system of the image left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.check import run, verdicts
from envbuild.check.findings import Finding
from envbuild.check.trial import Trial
from envbuild.events import Event, TaskDone, TaskFailed, Warned
from envbuild.store.store import Store
from envbuild.system.apptainer import Apptainer
from envbuild.system.fingerprint import fingerprint
from envbuild.workflows import test as testing
from envbuild.workflows.settings import Settings
from tests.unit.check.test_run import part, subject

APPTAINER = Apptainer(program=Path("/bin/apptainer"), version="1.4.5")
GOOD = Finding("PASS", "D0/D1.demo", "2", "2")
BAD = Finding("FAIL", "D1.demo/sum", "3", "2", "why")


class Stage:
    """Stands in for the image; remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.events: list[Event] = []
        self.asked: list[tuple[int, float, bool]] = []
        self.findings: tuple[Finding, ...] = (GOOD,)
        self.settings = Settings(store=Store(tmp_path / "store"), emit=self.events.append)
        self.manifest = subject().manifest
        self.parts = (part("sha256:aa"),)
        monkeypatch.setattr(Settings, "find_apptainer", lambda _: APPTAINER)
        monkeypatch.setattr(testing, "read_manifest", lambda _: self.manifest)
        monkeypatch.setattr(testing, "verify_parts", lambda _, advanced: self.parts)
        monkeypatch.setattr(testing, "try_job", self.try_job)
        monkeypatch.setattr(run, "probe", lambda *_, limit_s: [Finding("PASS", "S1.imports", "", "")])

    def try_job(self, job: object, *, ranks: int, limit_s: float, launch: object) -> Trial:
        self.asked.append((ranks, limit_s, launch is not None))
        return Trial(findings=self.findings, output="why" if BAD in self.findings else "")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    return Stage(monkeypatch, tmp_path)


def test_a_pass_is_recorded_for_this_host(stage: Stage, tmp_path: Path) -> None:
    report = testing.test_image(Path("a.sif"), settings=stage.settings, report=tmp_path / "r.json")
    assert report.passed
    assert [finding.id for finding in report.findings] == [
        "S1.digest",
        "S1.imports",
        "D0/D1.demo",
        "S3.mapped",
    ]
    assert stage.asked == [(2, 300.0, True)]
    assert json.loads((tmp_path / "r.json").read_text())["passed"] is True
    verdict = verdicts.latest(stage.settings.store.root, stage.manifest.digest, here=fingerprint(APPTAINER))
    assert verdict is not None
    assert verdict.state == "passed"
    assert [type(event) for event in stage.events].count(TaskDone) == 2


def test_a_failure_is_recorded_too_and_shows_its_output(stage: Stage) -> None:
    stage.findings = (GOOD, BAD)
    report = testing.test_image(Path("a.sif"), ranks=7, timeout_s=1.5, settings=stage.settings)
    assert not report.passed
    assert report.outputs == {"D1.demo": "why"}
    assert stage.asked == [(7, 1.5, True)]
    verdict = verdicts.latest(stage.settings.store.root, stage.manifest.digest, here=fingerprint(APPTAINER))
    assert verdict is not None
    assert verdict.failed == ("D1.demo/sum",)
    assert any(isinstance(event, TaskFailed) for event in stage.events)


def test_changed_parts_fail_whatever_the_jobs_say(stage: Stage) -> None:
    stage.parts = (part("sha256:bb"),)
    assert not testing.test_image(Path("a.sif"), settings=stage.settings).passed


def test_an_image_for_another_machine_is_not_started(stage: Stage) -> None:
    stage.manifest = subject(architecture="riscv64").manifest
    report = testing.test_image(Path("a.sif"), settings=stage.settings)
    assert "S1.architecture" in report.failed
    assert "S1.imports" not in [finding.id for finding in report.findings]
    assert stage.asked == [(2, 300.0, False)]


def test_a_store_that_cannot_be_written_costs_the_record_alone(stage: Stage) -> None:
    stage.settings.store.root.parent.joinpath("store").write_text("in the way")
    assert testing.test_image(Path("a.sif"), settings=stage.settings).passed
    assert any(isinstance(event, Warned) for event in stage.events)
