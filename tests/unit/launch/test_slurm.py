"""What srun answers, and what of the environment says which job of Slurm this is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.launch import slurm as scheduler
from envbuild.launch.slurm import allocated, environment_of_srun, slurm_offers


def slurm(directory: Path, *, types: str, config: str) -> str:
    for name, text in {"srun": types, "scontrol": config}.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        path.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


def test_srun_is_asked_and_a_variable_wins_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = slurm(tmp_path, types="MPI plugin types are...\n\tnone\n\tpmi2", config="MpiDefault  = pmi2\n")
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("SLURM_MPI_TYPE", raising=False)
    assert slurm_offers() == (("none", "pmi2"), "pmi2")
    monkeypatch.setenv("SLURM_MPI_TYPE", "none")
    assert slurm_offers() == (("none", "pmi2"), "none")


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError):
        slurm_offers()
    slurm(tmp_path, types="", config="")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(MachineError, match="names nothing"):
        slurm_offers()
    (tmp_path / "srun").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(scheduler, "_ASK_S", 0.5)
    with pytest.raises(MachineError, match="did not answer within"):
        slurm_offers()


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, 4),
        # One rank proves nothing: the image says how many are wanted.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "many"}, None),
        # Of an allocation of nodes srun starts one task on each.
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}, 4),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "2"}, 8),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, None),
        # A wish for jobs to come, and no job.
        ({"SLURM_NTASKS": "4"}, None),
    ],
)
def test_how_many_tasks_a_job_has(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], count: int | None
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert allocated() == count


def test_srun_learns_its_cluster_and_job_and_nothing_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    before = environment_of_srun()
    monkeypatch.setenv("SLURM_CONF", "/sw/slurm.conf")
    monkeypatch.setenv("UCX_TLS", "all")
    monkeypatch.setenv("LD_PRELOAD", "/x.so")
    assert environment_of_srun() == {**before, "SLURM_CONF": "/sw/slurm.conf"}
