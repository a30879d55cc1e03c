"""The variables by which PyTorch's ranks meet, from those of launchers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from envbuild.image.metadata import embedded_files

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SHOW = (
    'for name in RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT; do eval "echo \\"\\${$name-}\\""; done'
)
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-n1-77@1",
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "ranks.sh"
    path.write_bytes(embedded_files()["ranks.sh"])
    return path


def variables(script: Path, environment: dict[str, str]) -> tuple[str, ...]:
    env = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(
        ["sh", script, "sh", "-c", SHOW], env=env, capture_output=True, text=True, check=True
    )
    return tuple(done.stdout.split("\n")[: len(NAMES)])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (STEP, ("3", "4", "1", "n1", "11644")),
        # Ranks on the image's own MPI by Slurm's PMI: srun says where they are.
        (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4"}, ("3", "4", "1", "n1", "11644")),
        (STEP | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.12.0"}, ("3", "4", "1", "n1", "26379")),
        (STEP | {"SLURM_STEP_NUM_NODES": "1"}, ("3", "4", "1", "127.0.0.1", "11644")),
        (HYDRA, ("1", "2", "1", "127.0.0.1", "29500")),
        (HYDRA | {"MPI_LOCALNRANKS": "1", "MASTER_ADDR": "n1"}, ("1", "2", "1", "n1", "29500")),
        # Where the node of rank 0 is not known, PyTorch says what it lacks.
        (HYDRA | {"MPI_LOCALNRANKS": "1"}, ("1", "2", "1", "", "29500")),
        (HYDRA | {"PBS_JOBID": "123.server"}, ("1", "2", "1", "127.0.0.1", "10123")),
        # A user's own values stay.
        (HYDRA | {"RANK": "7", "MASTER_PORT": "1"}, ("7", "2", "1", "127.0.0.1", "1")),
        # A shell of srun on one rank, and mpiexec in it.
        (OPEN_MPI | {"PMI_RANK": "0", "PMI_SIZE": "1"}, ("1", "2", "1", "127.0.0.1", "28532")),
        (STEP | {"SLURM_JOB_ID": "012"}, ("3", "4", "1", "n1", "29500")),
        # Who is alone, and a batch script, get nothing.
        ({}, ("",) * 5),
        (HYDRA | {"PMI_SIZE": "1"}, ("",) * 5),
        ({"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, ("",) * 5),
        (HYDRA | {"ENVBUILD_TORCH_ENV": "0"}, ("",) * 5),
        (HYDRA | {"PMI_RANK": "one"}, ("",) * 5),
    ],
)
def test_variables(script: Path, environment: dict[str, str], expected: tuple[str, ...]) -> None:
    assert variables(script, environment) == expected


@pytest.mark.parametrize(
    ("environment", "warnings"),
    [
        (HYDRA | {"RANK": "0"}, ["RANK=0 is set, and for rank 1 of 2 it is 1: unset RANK"]),
        (HYDRA | {"LOCAL_RANK": "0"}, ["LOCAL_RANK=0 is set, and for rank 1 of 2 it is 1: unset LOCAL_RANK"]),
        (HYDRA | {"PMI_RANK": "0", "WORLD_SIZE": ""}, ["WORLD_SIZE= is set, and for rank 0 of 2 it is 2"]),
        # Rank 0 warns of the number, and rank 1 of the ranks.
        (HYDRA | {"WORLD_SIZE": "1"}, []),
        (HYDRA | {"PMI_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}, []),
        (HYDRA | {"RANK": "1", "LOCAL_RANK": "1"}, []),
        (HYDRA, []),
    ],
)
def test_a_value_that_contradicts_the_launcher_is_a_warning(
    script: Path, environment: dict[str, str], warnings: list[str]
) -> None:
    env = {"PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run(["sh", script, "true"], env=env, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == len(warnings)
    assert all(line.startswith(f"envbuild: {text}") for line, text in zip(lines, warnings, strict=True))


def test_steps_of_neighbouring_jobs_have_ports_of_their_own(script: Path) -> None:
    ports = [
        variables(script, STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})[4]
        for job in range(100, 104)
        for step in range(8)
    ]
    assert len({*ports}) == len(ports)


def test_jobs_of_open_mpi_on_one_machine_have_ports_of_their_own(script: Path) -> None:
    *place, port = variables(script, OPEN_MPI)
    assert place == ["1", "2", "1", "127.0.0.1"]
    assert 10_000 <= int(port) < 30_000
    assert variables(script, OPEN_MPI)[4] == port
    assert variables(script, OPEN_MPI | {"PMIX_NAMESPACE": "prterun-n1-78@1"})[4] != port


def test_starts_in_one_job_of_slurm_have_ports_of_their_own(script: Path, tmp_path: Path) -> None:
    """In one container the ranks have one parent, and each start another."""
    parent = tmp_path / "hydra_pmi_proxy"
    parent.symlink_to("/bin/sh")
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "12", **HYDRA}
    rank = f"sh {script} sh -c 'echo $MASTER_PORT'"
    ports = [
        subprocess.run(
            [parent, "-c", f"{rank}; {rank}; :"], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert all(first == second for first, second in ports)
    assert ports[0] != ports[1]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-2]", "n1"),
        ("n[001,004-007],m1", "n001"),
        ("rack[2-3]n[05-06]", "rack2n05"),
        ("nid[001000-001003]-hsn0", "nid001000-hsn0"),
    ],
)
def test_the_first_node_of_a_step(script: Path, nodes: str, first: str) -> None:
    assert variables(script, STEP | {"SLURM_STEP_NODELIST": nodes})[3] == first


def test_the_command_and_its_words_are_as_they_were(script: Path) -> None:
    words = ["printf", "%s|", "a  b", "*", "", "$HOME"]
    done = subprocess.run(["sh", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "a  b|*||$HOME|"
    assert subprocess.run(["sh", script, "sh", "-c", "exit 3"], check=False).returncode == 3
