"""`envbuild launch` under a real Slurm, on two nodes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, make_desk
from tests.integration.slurm.conftest import ranks_told

Images = Callable[[str], Path]
Words = list[str | Path]
TYPES = [("mpich", "pmi2"), ("openmpi", "pmix"), ("intel-mpi", "pmi2")]
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
    login.envbuild(*words, "--", "python", "ranks.py", "7", env=spread, code=7)


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


def test_in_a_batch_job(login: Desk, image_on: Images) -> None:
    line = shlex.join([str(login.command), "launch", str(image_on("mpich")), "--", "python", "ranks.py", "0"])
    login.write("job.sh", f"#!/bin/bash\n#SBATCH -N2 -n4 --ntasks-per-node=2\n#SBATCH -o job.out\n{line}\n")
    login.run(["sbatch", "--quiet", "--wait", "job.sh"])
    assert ranks_told((login.place / "job.out").read_text()) == FOUR


def test_as_root(login: Desk, shared: Path, image_on: Images) -> None:
    root = make_desk(shared, "root-on-login", login.command, root=True)
    root = replace(root, cluster=login.cluster, env=login.env, store=login.store)
    root.write("ranks.py", (login.place / "ranks.py").read_text())
    site = login.place / "slurm.yaml"
    for mpi, _ in TYPES:
        words: Words = ["launch", image_on(mpi), "--site", site, "-n", "4", "--", "python", "ranks.py", "0"]
        assert ranks_told(root.envbuild(*words, env={"SLURM_NTASKS_PER_NODE": "2"}).stdout) == FOUR
