"""The log that the configuration names: one line for each action, and never a reason to fail."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.events import Event, Warned
from envbuild.extend.request import ExtendRequest
from envbuild.jobs.report import CheckResult
from envbuild.store.report import Report
from envbuild.system import files, host
from envbuild.workflows.activity import log_activity
from envbuild.workflows.configuration import show_configuration
from envbuild.workflows.extend import extend_image
from envbuild.workflows.module import InstallRequest, install_module
from envbuild.workflows.settings import Settings
from envbuild.workflows.test import record_verdict
from tests.support.images import read_manifest
from tests.support.planned_builds import Bench

SMALL: dict[str, Any] = {"name": "small/1", "digest": "sha256:ab", "result": "built"}


@pytest.fixture
def tested() -> Report:
    return Report(
        name="small",
        version="1",
        digest="sha256:" + "0" * 64,
        ranks=2,
        checks=[CheckResult("PASS", "a/ranks", "1", "1")],
        fingerprint="sha256:" + "ab" * 32,
        facts={"kernel": "6.1"},
        when="2026-11-21T01:00:00Z",
    )


@pytest.fixture
def log(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    path = tmp_path / "log.jsonl"
    config.write_text(f"log: {path}\n")
    Settings.of(store=tmp_path / "store")
    return path


def entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_line_says_what_by_whom_and_where(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("before\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    log_activity(lambda _: None, "build", path=tmp_path / "small.sif", **SMALL)
    first, line = log.read_text().splitlines()
    assert first == "before"
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "format": 1,
        "action": "build",
        "name": "small/1",
        "digest": "sha256:ab",
        "result": "built",
        "path": str(tmp_path / "small.sif"),
        "user": host.user(),
        "uid": os.getuid(),
        "host": host.name(),
        "job": "7",
    }


def test_lines_of_many_do_not_mix_and_are_bounded(log: Path) -> None:
    path = Path("/" + "/".join(["\udcff\n" * 60] * 30))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: log_activity(lambda _: None, "test", path=path, **SMALL), range(100)))
    assert len(entries(log)) == 100
    assert all(len(line) < 16_384 for line in log.read_bytes().splitlines())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no directory", "No such file"),
        ("directory", "Is a directory"),
        ("pipe", "No such device"),  # which has no reader
        ("link", "it is a symbolic link"),
    ],
)
def test_a_log_that_cannot_be_written_is_a_warning(log: Path, config: Path, kind: str, reason: str) -> None:
    if kind == "no directory":
        config.write_text("log: /absent/log.jsonl\n")
    elif kind == "directory":
        log.mkdir()
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to("/dev/null")
    events: list[Event] = []
    log_activity(events.append, "build", **SMALL)
    (warning,) = events
    assert isinstance(warning, Warned)
    assert f"was not written: {reason}" in warning.text
    assert f"{config}:1:6" in (warning.hint or "")
    (note,) = show_configuration({}).notes
    assert note.startswith(f"{config}:1:6: the log `")
    assert f"cannot be written: {reason}" in note


def test_a_log_that_can_be_written_has_no_note_and_is_not_made(log: Path) -> None:
    assert show_configuration({}).notes == ()
    assert not log.exists()
    log.touch()
    assert show_configuration({}).notes == ()
    assert log.read_bytes() == b""


def test_nothing_is_logged_by_default(config: Path, tmp_path: Path) -> None:
    Settings.of(store=tmp_path / "store")
    events: list[Event] = []
    log_activity(events.append, "build", **SMALL)
    assert events == []


def test_the_centre_s_log_is_written_beside_the_user_s(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path)
    (tmp_path / "config.yaml").write_text(f"log: {tmp_path}/centre.jsonl\n")
    log_activity(lambda _: None, "build", **SMALL)
    assert entries(log) == entries(tmp_path / "centre.jsonl")


def test_what_is_built_tested_installed_and_extended_is_logged(
    bench: Bench, log: Path, tmp_path: Path, run: Any, tested: Report
) -> None:
    code, _, said = run("build")
    assert code == 0, said
    image = bench.spec.with_suffix(".sif")
    settings = Settings.of(store=tmp_path / "store")
    record_verdict(replace(tested, digest=read_manifest(image).digest), settings)
    installed = install_module(InstallRequest(image=image, root=tmp_path / "sw"), settings)
    extended = tmp_path / "extended.sif"
    extend_image(ExtendRequest(image=image, output=extended, environment=["A=b"]), settings)
    digest, label = read_manifest(image).digest, installed.layout.label
    assert [(entry["action"], entry["name"], entry["digest"], entry["path"]) for entry in entries(log)] == [
        ("build", label, digest, str(image)),
        ("test", "small/1", digest, None),
        ("install", label, digest, str(installed.layout.modulefile)),
        ("extend", label, read_manifest(extended).digest, str(extended)),
    ]
    assert entries(log)[1]["result"].startswith("passed")
    # What is there already is not built again.
    run("build")
    assert len(entries(log)) == 4
