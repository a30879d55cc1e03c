"""What srun answers, and what of the environment says which job of Slurm this is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.errors import MachineError
from envbuild.launch import start
from envbuild.launch.launchers.srun import Srun
from envbuild.launch.schedulers import Allocation, allocation, scheduler
from envbuild.launch.schedulers import slurm as slurm_module
from envbuild.launch.schedulers.slurm import SlurmHere


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
    here = SlurmHere()
    assert (here.pmi_types(), here.default_pmi) == (("none", "pmi2"), "pmi2")
    monkeypatch.setenv("SLURM_MPI_TYPE", "none")
    assert SlurmHere().default_pmi == "none"


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError):
        SlurmHere().pmi_types()
    slurm(tmp_path, types="", config="")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(MachineError, match="names nothing"):
        SlurmHere().pmi_types()
    (tmp_path / "srun").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(slurm_module, "_ASK_S", 0.5)
    with pytest.raises(MachineError, match="did not answer within"):
        SlurmHere().pmi_types()


def test_srun_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = slurm(tmp_path, types="pmi2", config="")
    script = tmp_path / "srun"
    script.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\necho pmi2\n')
    monkeypatch.setenv("PATH", path)
    here = SlurmHere()
    for _ in range(3):
        assert (here.pmi_types(), here.version) == (("pmi2",), "pmi2")
    assert (tmp_path / "asked").read_text().splitlines() == ["--mpi=list", "--version"]


@pytest.mark.parametrize(
    ("variables", "shape"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, (1, 1)),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, (1, 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "many"}, (1, 1)),
        # Of an allocation of nodes srun starts one task on each.
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}, (4, 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "2"}, (4, 8)),
        # A wish for jobs to come, and no job.
        ({"SLURM_NTASKS": "4"}, None),
    ],
)
def test_a_job_of_slurm(variables: dict[str, str], shape: tuple[int, int] | None) -> None:
    job = allocation(variables)
    assert (job and (job.scheduler, job.nodes, job.tasks)) == (shape and ("slurm", *shape))


def test_a_job_of_pbs(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\nn2\n")
    job = allocation({"PBS_JOBID": "12.server", "PBS_NODEFILE": str(nodes)})
    assert job == Allocation(scheduler="pbs", nodes=2, tasks=4)
    assert allocation({"PBS_JOBID": "12.server"}) == Allocation(scheduler="pbs", nodes=1, tasks=1)
    assert allocation({"PBS_NODEFILE": str(nodes)}) is None


def test_a_scheduler_that_envbuild_does_not_know() -> None:
    assert scheduler("lsf") is None


def test_srun_learns_its_cluster_and_job_and_nothing_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    before = start.environment_of(Srun())
    monkeypatch.setenv("SLURM_CONF", "/sw/slurm.conf")
    monkeypatch.setenv("UCX_TLS", "all")
    monkeypatch.setenv("LD_PRELOAD", "/x.so")
    assert start.environment_of(Srun()) == {**before, "SLURM_CONF": "/sw/slurm.conf"}
    assert start.environment_of(None) == before
