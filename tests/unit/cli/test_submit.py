"""`test --nodes` and `vet --nodes` submit themselves as a job of Slurm."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from envbuild.events import ignore
from envbuild.workflows.images import image_file
from envbuild.workflows.push import push_image
from envbuild.workflows.settings import Settings
from tests.support.images import read_manifest
from tests.support.registry import serving
from tests.support.small_images import BASE, UNREAD, small_image
from tests.unit.cli.test_command import run


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file to which an sbatch that refuses every job writes the script of the job."""
    script = tmp_path / "script"
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        f'#!/bin/sh\ncat >{script}\necho "$@" >{script}.options\n'
        "echo 'sbatch: error: Invalid account' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    return script


@pytest.mark.parametrize("verb", ["test", "vet"])
def test_the_job_runs_the_command_that_was_given(
    verb: str,
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = small_image(tmp_path, UNREAD)
    # A program that calls envbuild has arguments of its own.
    monkeypatch.setattr(sys, "argv", ["nightly.py", "--all"])
    words = ["-q", verb, str(image), "--nodes", "2", "--store", str(tmp_path / "a store")]
    code, _, said = run(words, capsys)
    assert (code, "Slurm refuses the job: sbatch: error: Invalid account" in said) == (2, True)
    (line,) = (line for line in script.read_text().splitlines() if line.startswith("exec "))
    assert shlex.split(line)[-len(words) :] == words


@pytest.mark.parametrize("verb", ["test", "vet"])
def test_the_job_gets_the_digest_of_a_tag(
    verb: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as registry:
        name = f"{registry.host}/lab/one"
        pushed = push_image(small_image(tmp_path, BASE), f"{name}:1", ignore, with_sif=True)
        words = [verb, f"oras://{name}:1", "--nodes", "2", "--store", str(tmp_path / "store")]
        code, _, said = run(words, capsys)
    assert (code, "Slurm refuses the job: sbatch: error: Invalid account" in said) == (2, True)
    (line,) = (line for line in script.read_text().splitlines() if line.startswith("exec "))
    words[1] = f"{name}@{pushed.digest}"
    assert shlex.split(line)[-len(words) :] == words
    # The store has it for the job, whatever the tag becomes.
    assert image_file(Path(words[1]), Settings.of(store=tmp_path / "store")).exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--site", "here.yaml/cpu"], ["--partition=standard"]),
        (["--site", "here.yaml", "--partition", "small"], ["--partition=standard", "--partition=small"]),
        (["--site", "here.yaml", "--partition", "gpu"], ["--partition=gpu"]),
    ],
)
def test_the_partition_of_the_job_is_that_of_the_site(
    options: list[str], expected: list[str], script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = small_image(tmp_path, UNREAD)
    (tmp_path / "here.yaml").write_text(
        "name: here\nscheduler: {name: slurm}\npartitions:\n"
        "  cpu: {queues: [standard, small], scheduler: {batch_options: [--partition=standard]}}\n"
        "  gpu: {}\n"
    )
    words = ["vet", str(image), "--nodes", "2", "--store", str(tmp_path / "store")]
    _, _, said = run([*words, *options], capsys)
    assert "Invalid account" in said
    written = Path(f"{script}.options").read_text().split()
    assert [word for word in written if word.startswith("--partition=")] == expected


@pytest.mark.parametrize("verb", ["test", "vet"])
def test_the_comment_of_the_job_names_the_image_unless_the_user_has_one(
    verb: str,
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = small_image(tmp_path, UNREAD)
    manifest = read_manifest(image)
    words = [verb, str(image), "--nodes", "2", "--store", str(tmp_path / "store")]

    def comments(*options: str) -> list[str]:
        run([*words, *options], capsys)
        written = Path(f"{script}.options").read_text().split()
        return [word for word in written if word.startswith("--comment=")]

    ours = f"--comment=envbuild:{manifest.name}/{manifest.version}@{manifest.digest}"
    assert comments() == [ours]
    # Of two sbatch takes the last.
    assert comments("--slurm", "--comment=mine") == [ours, "--comment=mine"]
    monkeypatch.setenv("SBATCH_COMMENT", "mine")
    assert comments() == []


def test_a_job_at_a_site_with_partitions_is_for_one(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = small_image(tmp_path, UNREAD)
    (tmp_path / "here.yaml").write_text("name: here\npartitions: {cpu: {}, gpu: {}}\n")
    words = ["test", str(image), "--nodes", "2", "--site", "here.yaml", "--store", str(tmp_path / "store")]
    code, _, said = run(words, capsys)
    assert (code, "error: the site `here` has several partitions: cpu, gpu" in said) == (2, True)
    assert not script.exists()
