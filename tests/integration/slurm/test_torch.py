"""A plain script of PyTorch: its ranks meet however they are started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.integration.main_job.test_activate import LMOD
from tests.integration.slurm.conftest import ranks_told
from tests.integration.slurm.test_launch import FOUR

PROGRAM = """\
import os, socket
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
said = [None] * dist.get_world_size()
words = dist.get_rank(), dist.get_world_size(), int(total), socket.gethostname()
# Of lines that several ranks print at once, one may begin within another.
dist.all_gather_object(said, " ".join(map(str, words)))
if dist.get_rank() == 0:
    print("\\n".join(said), flush=True)
assert int(os.environ["LOCAL_RANK"]) == dist.get_rank() % 2
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def desk_of_torch(login: Desk) -> Desk:
    login.write("ddp.py", PROGRAM)
    return login


@pytest.fixture(scope="module")
def use(desk_of_torch: Desk, image: Path) -> str:
    """A line of bash that loads the image's module."""
    desk_of_torch.envbuild("module", "install", image, "--root", "of-torch", "--link")
    root = desk_of_torch.place / "of-torch"
    return f"source {LMOD}; module use {root}/modulefiles; module load pytorch-mpi/2026.11; "


def two_ranks(output: str) -> list[list[str]]:
    return [line[:3] for line in ranks_told(output)]


@pytest.mark.slow  # as test_a_module
def test_launch(desk_of_torch: Desk, image: Path) -> None:
    words: list[str | Path] = ["launch", image, "--site", "slurm.yaml", "-n", "4"]
    done = desk_of_torch.envbuild(*words, "--", "python", "ddp.py", env={"SLURM_NTASKS_PER_NODE": "2"})
    assert ranks_told(done.stdout) == FOUR
    here = desk_of_torch.envbuild("launch", image, "-n", "2", "--", "python", "ddp.py")
    assert two_ranks(here.stdout) == [["0", "2", "3"], ["1", "2", "3"]]
    words = ["launch", image, "-n", "2", "--no-torch-env", "--", "python", "ddp.py"]
    assert "environment variable RANK expected" in desk_of_torch.envbuild(*words, code=1).stderr


@pytest.mark.slow  # `make cluster` has PyTorch on two nodes, and unit/launch the same start
def test_a_module(desk_of_torch: Desk, use: str) -> None:
    done = desk_of_torch.run(["bash", "-c", use + "mpiexec -n 2 python ddp.py"])
    assert two_ranks(done.stdout) == [["0", "2", "3"], ["1", "2", "3"]]
    parts = "mpiexec -n 1 python ddp.py : -n 1 python ddp.py"
    done = desk_of_torch.run(["bash", "-c", use + parts])
    assert two_ranks(done.stdout) == [["0", "2", "3"], ["1", "2", "3"]]
    spread = {"SLURM_NTASKS_PER_NODE": "2"}
    done = desk_of_torch.run(["bash", "-c", use + "srun --mpi=pmi2 -n 4 python ddp.py"], env=spread)
    assert ranks_told(done.stdout) == FOUR


@pytest.mark.slow  # unit/jobs/test_ranks_script.py has their ports
def test_two_launches_at_once_do_not_meet(desk_of_torch: Desk, image: Path) -> None:
    start = f"{desk_of_torch.command} launch {image} -n 2 -- python ddp.py"
    done = desk_of_torch.run(["bash", "-c", f"{start} & {start} & wait"])
    assert two_ranks(done.stdout) == [["0", "2", "3"]] * 2 + [["1", "2", "3"]] * 2


@pytest.mark.slow  # each run tests the whole image
def test_whoever_starts_the_ranks_the_jobs_are_the_same(desk_of_torch: Desk, image: Path) -> None:
    """Those that a launcher cannot start are skipped, with the reason."""

    def jobs(*words: str, nodes: int = 1) -> dict[str, str]:
        env = {"SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": str(nodes)}
        done = desk_of_torch.envbuild("test", image, "--ranks", str(2 * nodes), *words, "--json", env=env)
        report = json.loads(done.stdout)
        assert report["passed"]
        return {
            each["id"].partition("/")[0]: each["hint"] if each["status"] == "SKIP" else ""
            for each in report["findings"]
            if each["id"].endswith(("/ranks", "/launcher"))
        }

    own = jobs()
    assert set(own.values()) == {""}
    by_torchrun = jobs("--launcher", "torchrun")
    by_srun = {nodes: jobs("--launcher", "srun", nodes=nodes) for nodes in (1, 2)}
    for skipped in (by_torchrun, *by_srun.values()):
        assert skipped.keys() == own.keys()
    assert by_torchrun["pytorch.ddp"] == by_torchrun["pytorch.torchrun"] == ""
    assert by_torchrun["mpi.collectives"] == "mpiexec must start it, in one container on one node"
    for skipped in by_srun.values():
        assert skipped["pytorch.ddp"] == skipped["mpi.collectives"] == ""
        assert skipped["pytorch.torchrun"] == "torchrun must start it, in one container on one node"
