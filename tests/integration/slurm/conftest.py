"""A cluster of Slurm, and the ordinary user's work place on its login node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.slurm import Cluster, slurm_cluster

# Open MPI 5 crashes where a rank's first message reaches another one that has not left MPI_Init yet (ompi's
# issues 11438 and 12495, pull request 13559): the ranks wait, for it is their start that is tested here.
PROGRAM = """\
import socket
import sys
import time
from mpi4py import MPI
time.sleep(0.5)
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
print(comm.rank, comm.size, total, socket.gethostname(), flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def cluster(shared: Path) -> Iterator[Cluster]:
    directory = shared / "slurm"
    directory.mkdir()
    with slurm_cluster(directory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def login(desk: Desk, cluster: Cluster) -> Desk:
    """The ordinary user's desk, as the login node has it: the same files, and Slurm."""
    desk.write("ranks.py", PROGRAM)
    desk.write("slurm.yaml", "name: slurm\nscheduler: {name: slurm, mpi_types: [pmi2, pmix]}\n")
    return replace(desk, cluster=cluster, env={**desk.env, **cluster.environment})


def ranks_told(output: str) -> list[list[str]]:
    """Return what the ranks of `PROGRAM` wrote, in their order: rank, size, total, node."""
    return sorted(line.split() for line in output.splitlines())
