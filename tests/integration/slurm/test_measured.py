"""`envbuild bench --nodes` and recorded ranks under a real Slurm, on two nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk
from tests.integration.main_job.test_activate import LMOD
from tests.integration.slurm.test_launch import Images
from tests.support.schemas import complaints

SPREAD = {"SLURM_NTASKS_PER_NODE": "2"}
WORK = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: sum(range(1000))\n"


def points_of(result: Any) -> list[tuple[str, int, int]]:
    return [(point["benchmark"], point["nodes"], point["ranks"]) for point in result["points"]]


def test_a_job_of_its_own_measures_on_one_and_two_nodes(login: Desk, image_on: Images) -> None:
    line: list[str | Path] = ["bench", image_on("mpich"), "--nodes", "1,2", "--ranks", "1,2"]
    only = ["--only", "mpi.start", "--only", "mpi.allreduce"]
    options: list[str | Path] = [*only, "--repeats", "1", "--results", "kept-bench", "--report", "b.html"]
    done = login.envbuild(*line, *options, "--json")
    result = json.loads(done.stdout)
    assert complaints("bench", result) == []
    assert set(points_of(result)) == {
        *(("mpi.start", *place) for place in ((1, 1), (1, 2), (2, 2))),
        *(("mpi.allreduce", *place) for place in ((1, 2), (2, 2))),
    }
    assert [(point["benchmark"], point["ranks"]) for point in result["unmeasured"]] == [("mpi.allreduce", 1)]
    # Two ranks of a node share its memory; those of two nodes have the interface of their network.
    networks = {point["nodes"]: point["network"] for point in result["points"] if point["network"]}
    assert networks[1] in ("lo", "shared memory")
    assert networks[2] not in ("", "lo", "shared memory")
    assert result["launcher"].endswith(" --mpi=pmi2")
    assert "<svg" in (login.place / "b.html").read_text()
    assert not list(login.place.glob("envbuild-test-*"))


@pytest.mark.slow  # the job above has the same points; here it is the user's allocation
def test_an_allocation_is_used(login: Desk, image_on: Images) -> None:
    line: list[str | Path] = [login.command, "bench", image_on("mpich"), "--nodes", "2", "--ranks", "2,4"]
    options: list[str | Path] = ["--only", "mpi.start", "--repeats", "1", "--results", "kept-bench", "--json"]
    allocation = ["salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2"]
    result = json.loads(login.run([*allocation, *line, *options]).stdout)
    assert set(points_of(result)) == {("mpi.start", 2, 2), ("mpi.start", 2, 4)}
    too_many = login.run([*allocation, *line, "--nodes", "3", "--ranks", "3"], code=2).stderr
    assert "this job has 2 nodes, not 3" in too_many


def test_ranks_of_launch_are_recorded_on_each_node(login: Desk, image_on: Images) -> None:
    login.write("work.py", WORK)
    records = login.place / "records-of-launch"
    line: list[str | Path] = ["launch", image_on("mpich"), "--site", "slurm.yaml", "-n", "4"]
    login.envbuild(*line, "--observe", records, "--", "python", "work.py", env=SPREAD)
    assert_recorded(login, records)


def test_ranks_of_a_module_are_recorded_on_each_node(login: Desk, image_on: Images) -> None:
    login.write("work.py", WORK)
    root = login.place / "modules-observed"
    login.envbuild("module", "install", image_on("mpich"), "--root", root, "--link")
    use = f"source {LMOD}; module use {root}/modulefiles; module load on-mpich/1; "
    observed = {**SPREAD, "ENVBUILD_OBSERVE": "records-of-module"}
    login.run(["bash", "-c", f"{use} srun --mpi=pmi2 -n 4 python work.py"], env=observed)
    assert_recorded(login, login.place / "records-of-module")


def assert_recorded(login: Desk, records: Path) -> None:
    """Hold records to those of four ranks on two nodes, each of which worked to its end."""
    assert {path.name for path in records.iterdir()} == {
        *(f"rank-{rank}.jsonl" for rank in range(4)),
        *("node-n1.jsonl", "node-n2.jsonl"),
    }
    found = json.loads(login.envbuild("observe", records, "--json").stdout)
    assert found["unread"] == {}
    assert [(rank["rank"], rank["host"], rank["end"]) for rank in found["ranks"]] == [
        *((0, "n1", "exit"), (1, "n1", "exit"), (2, "n2", "exit"), (3, "n2", "exit"))
    ]
    assert all(rank["busy"] > 0 and rank["start_s"] > 0 for rank in found["ranks"])
    assert len(found["jobs"]) == 1
    assert found["images"][0].startswith("sha256:")
