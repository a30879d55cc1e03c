"""A job is submitted to a Slurm that does not take it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError, MachineError, RequestError
from envbuild.launch.schedulers.follow import run_in_job
from envbuild.launch.schedulers.slurm import SCHEDULER


@pytest.mark.parametrize(
    ("says", "kind", "problem"),
    [
        (
            "sbatch: error: fetch_config: DNS SRV lookup failed\n"
            "sbatch: error: _establish_config_source: failed to fetch config\n"
            "sbatch: fatal: Could not establish a configuration source",
            MachineError,
            "no controller of Slurm answers",
        ),
        ("sbatch: error: Unable to contact slurm controller", MachineError, "no controller of Slurm answers"),
        (
            "sbatch: error: Invalid account",
            RequestError,
            "Slurm refuses the job: sbatch: error: Invalid account",
        ),
    ],
)
def test_no_answer_is_not_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, kind: type[EnvbuildError], problem: str
) -> None:
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        run_in_job(SCHEDULER, ["true"], [], variables={}, emit=lambda _: None)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("missing", "code"),
    [("/nowhere/python", None), ("a directory", None), ("sh -c 'exit 3'", 3)],
    ids=["no such program", "not a program", "a program that ends with another code"],
)
def test_a_node_without_our_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, code: int | None
) -> None:
    """The scheduler here runs the script at once, on a node that lacks what the login node has."""
    for name, text in {
        "sbatch": 'cat >"$JOB/script"\n'
        'for word; do case $word in --error=*) sh "$JOB/script" 2>"${word#--error=}";; esac; done\n'
        'echo $? >"$JOB/code"\necho 7\n',
        "scontrol": 'echo "JobState=FAILED ExitCode=$(cat "$JOB/code"):0 NodeList=n7"\n',
    }.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("JOB", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = [str(tmp_path)] if missing == "a directory" else shlex.split(missing)
    if code is not None:
        assert run_in_job(SCHEDULER, words, [], variables={}, emit=lambda _: None) == code
        return
    with pytest.raises(MachineError) as caught:
        run_in_job(SCHEDULER, words, [], variables={}, emit=lambda _: None)
    assert caught.value.problem == f"Slurm job 7: n7 cannot start `{words[0]}`"
    assert "all nodes" in caught.value.hint
