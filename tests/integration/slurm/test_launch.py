"""`envbuild launch` under a real Slurm, on two nodes."""

from __future__ import annotations

import filecmp
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.integration.main_job.test_activate import LMOD
from tests.integration.slurm.conftest import ranks_told

Images = Callable[[str], Path]
Words = list[str | Path]
TYPES = [
    ("mpich", "pmi2"),
    ("openmpi", "pmix"),
    pytest.param("intel-mpi", "pmi2", marks=pytest.mark.slow),
]
OTHERS = ("openmpi", "intel-mpi")
FOUR = [["0", "4", "10", "n1"], ["1", "4", "10", "n1"], ["2", "4", "10", "n2"], ["3", "4", "10", "n2"]]


@pytest.mark.parametrize(("mpi", "pmi"), TYPES)
def test_ranks_on_two_nodes_are_of_one_world(login: Desk, image_on: Images, mpi: str, pmi: str) -> None:
    words: Words = ["launch", image_on(mpi), "--site", "slurm.yaml", "-n", "4"]
    spread = {"SLURM_NTASKS_PER_NODE": "2"}
    printed = login.envbuild(*words, "--dry-run", "--", "python", "ranks.py", "0").stdout
    assert shlex.split(printed)[:4] == ["srun", f"--mpi={pmi}", "-n", "4"]
    done = login.envbuild(*words, "--", "python", "ranks.py", "0", env=spread)
    assert ranks_told(done.stdout) == FOUR
    # The line that is printed is the one that runs, and its exit code the program's.
    assert ranks_told(login.run(shlex.split(printed), env=spread).stdout) == FOUR
    # Else Slurm ends the others with the first that fails, and may report their signal.
    alone = {**spread, "SLURM_KILL_BAD_EXIT": "0"}
    login.envbuild(*words, "--", "python", "ranks.py", "7", env=alone, code=7)


@pytest.mark.parametrize(("mpi", "pmi"), TYPES)
def test_in_an_allocation_it_needs_neither_a_site_nor_a_count(
    login: Desk, image_on: Images, mpi: str, pmi: str
) -> None:
    line: Words = [login.command, "launch", image_on(mpi), "--", "python", "ranks.py", "0"]
    four = login.run(["salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2", *line])
    assert ranks_told(four.stdout) == FOUR
    # No tasks were asked for: one a node.
    two = login.run(["salloc", "--quiet", "-N2", *line])
    assert ranks_told(two.stdout) == [["0", "2", "3", "n1"], ["1", "2", "3", "n2"]]


@pytest.mark.parametrize("mpi", ["mpich", *(pytest.param(mpi, marks=pytest.mark.slow) for mpi in OTHERS)])
def test_the_image_s_own_launcher_keeps_its_ranks_on_its_machine(
    login: Desk, image_on: Images, mpi: str
) -> None:
    """It has no srun or ssh, by which it would reach the nodes of a job."""
    image, root = image_on(mpi), login.place / "modules-own"
    login.envbuild("module", "install", image, "--root", root)
    use = f"source {LMOD}; module use {root}/modulefiles; module load on-{mpi}/1; "
    allocation = ["salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2"]
    launch: Words = [login.command, "launch", image, "--launcher", "mpiexec", "-n", "2", "--"]
    lines: list[Words] = [
        ["timeout", "60", *launch, "python", "ranks.py", "0"],
        ["bash", "-c", f"{use} timeout 60 mpiexec -n 2 python ranks.py 0"],
    ]
    for line in lines:
        # Else each word of a rank would be a write of its own, and they mix.
        done = login.run([*allocation, *line], env={"PYTHONUNBUFFERED": ""})
        (first, second) = ranks_told(done.stdout)
        assert [first[:3], second[:3]] == [["0", "2", "3"], ["1", "2", "3"]]
        assert first[3] == second[3]


def test_ranks_start_the_copy_that_sbcast_made(login: Desk, image_on: Images) -> None:
    disk = login.place / "disk"
    disk.mkdir()
    allocation = ["salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2"]
    line: Words = [
        login.command,
        "launch",
        "--stage",
        disk,
        image_on("mpich"),
        "--",
        "python",
        "ranks.py",
        "0",
    ]
    done = login.run([*allocation, *line])
    assert ranks_told(done.stdout) == FOUR
    assert f"are needed in `{disk}` on 2 nodes" in done.stderr
    (copy,) = disk.iterdir()
    assert filecmp.cmp(copy, image_on("mpich"), shallow=False)
    again = login.run([*allocation, *line])
    assert ranks_told(again.stdout) == FOUR
    assert f"the image is already at `{copy}` on 2 nodes" in again.stderr
