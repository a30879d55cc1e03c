"""Commands that take several images: a table, JSON, and the gravest exit code; one failure stops no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.errors import BuildError
from envbuild.jobs.report import CheckResult
from envbuild.store.report import Report
from envbuild.workflows import test as test_workflow
from envbuild.workflows.settings import Settings
from tests.support.module_roots import put_module
from tests.support.small_images import BASE, UNREAD, small_image


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    image = small_image(tmp_path, BASE, name="a.sif")
    (tmp_path / "envs").mkdir()
    for name in ("a", "b", "c"):
        shutil.copy(image, tmp_path / f"envs/{name}.sif")
    put_module(image, tmp_path / "apps", "demo/1")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The images that are tested: `b.sif` cannot be started, and `c.sif` fails a job."""
    tested: list[Path] = []

    def test_image(request: test_workflow.TestRequest, settings: Settings) -> Report:
        tested.append(request.image)
        if request.image.name == "b.sif":
            raise BuildError("it does not start", hint="h")
        status = "FAIL" if request.image.name == "c.sif" else "PASS"
        checks = [CheckResult(status, "demo.sum/ranks", "2", "2")]
        return Report(name="demo", version="1", digest="sha256:1", ranks=2, checks=checks, outputs={})

    monkeypatch.setattr(test_workflow, "test_image", test_image)
    return tested


def test_one_image_that_cannot_be_tested_leaves_the_others_done(
    tested: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, table, said = run(capsys, "test", "envs")
    assert code == 4
    assert [line.split()[:2] for line in table.splitlines()] == [
        ["PASS", "envs/a.sif"],
        ["failed", "envs/b.sif"],
        ["FAIL", "envs/c.sif"],
    ]
    assert "it does not start" in said
    assert len(tested) == 3
    document: Any = json.loads(run(capsys, "test", "envs", "--json")[1])
    assert [member["exit_code"] for member in document["members"]] == [0, 3, 4]
    assert document["members"][0]["result"]["passed"] is True


def test_modules_are_tested_by_their_names(tested: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, said = run(capsys, "test", "--root", "apps", "demo/1")
    assert (code, printed) == (0, "")
    assert tested == [Path.cwd() / "apps/envs/demo/1/image.sif"]
    # One image has the output of one.
    assert "demo/1" in said
    assert run(capsys, "test", "--all", "apps", "--all", "envs")[0] == 4
    assert len(tested) == 5


@pytest.mark.parametrize("option", [("--report", "x.json"), ("--nodes", "2")])
def test_options_for_one_image_are_refused_for_many(
    tested: list[Path], capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    code, _, said = run(capsys, "test", "envs", *option)
    assert (code, tested) == (2, [])
    assert f"{option[0]} is for one image" in said


def test_several_are_installed_and_one_that_did_not_pass_is_left_out(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = desk / "apptainer"
    program.write_text("#!/bin/sh\necho 'apptainer version 1.4.5'\n")
    program.chmod(0o755)
    install = ("module", "install", "--root", "sw", "--apptainer", str(program))
    other = small_image(desk, UNREAD, name="other.sif", version="2")
    code, table, said = run(capsys, *install, "envs/a.sif", str(other), "none.sif")
    assert code == 2
    assert [line.split() for line in table.splitlines()][:2] == [
        ["installed", "envs/a.sif", "demo/2026.11"],
        ["installed", str(other), "demo/2"],
    ]
    assert "there is no image `none.sif`" in said
    assert run(capsys, *install, "envs/a.sif", str(other), "--name", "x")[0] == 2
    # Both are demo/2026.11: the second would replace the first.
    code, _, said = run(capsys, *install, "envs")
    assert code == 2
    assert "`envs/a.sif` and `envs/b.sif` would both write `sw/modulefiles/demo/2026.11`" in said
    # Neither was tested.
    assert run(capsys, *install, "envs/a.sif", str(other), "--require-pass")[0] == 4


@pytest.mark.parametrize("words", [("status",), ("test",), ("check",), ("module", "install", "--root", "sw")])
def test_an_unset_variable_is_not_the_working_directory(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, _, said = run(capsys, *words, "")
    assert (code, "the name of an image is empty" in said) == (2, True)


def test_a_bill_of_materials_is_of_one_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "sbom", "--root", "apps", "demo/1") == (0, "{}\n", "")
    assert run(capsys, "sbom", "envs")[0] == 2
