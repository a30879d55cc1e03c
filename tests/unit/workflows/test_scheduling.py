"""What of the environment says which job of Slurm this is, and goes on to srun."""

from __future__ import annotations

import os

import pytest

from envbuild.workflows.scheduling import allocated, environment_of_srun


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, 4),
        # One rank proves nothing: the image says how many are wanted.
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "many"}, None),
        # A wish for jobs to come, and no job.
        ({"SLURM_NTASKS": "4"}, None),
    ],
)
def test_how_many_tasks_a_job_has(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], count: int | None
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS"):
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
