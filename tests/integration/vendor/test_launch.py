"""`envbuild launch`, with ranks that are really started."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.hostmpi import HostMpi

PROGRAM = """\
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
if comm.rank == 0:
    print(comm.size, total, MPI.Get_library_version().split()[0], flush=True)
sys.exit(int(sys.argv[1]))
"""


def test_the_image_s_own_mpiexec_starts_the_ranks(desk: Desk, image_on: Callable[[str], Path]) -> None:
    desk.write("program.py", PROGRAM)
    line: list[str | Path] = ["launch", image_on("mpich"), "-n", "2", "--", "python", "program.py"]
    assert desk.envbuild(*line, "0").stdout.split() == ["2", "3", "MPICH"]
    # Its exit code is the program's.
    desk.envbuild(*line, "7", code=7)


@pytest.mark.slow  # vendor/test_module has the same ranks by a module
def test_the_host_s_mpiexec_starts_them_on_the_host_s_mpi(
    desk: Desk, image_on: Callable[[str], Path], host_mpi: Callable[[str], HostMpi]
) -> None:
    desk.write("program.py", PROGRAM)
    intel = host_mpi("intel-mpi")
    site = desk.write("intel.yaml", intel.site())
    options: list[str | Path] = ["-n", "2", "--site", site, "--mpi", "host"]
    line = ["launch", image_on("mpich"), *options]
    done = desk.envbuild(*line, "--", "python", "program.py", "0")
    assert done.stdout.split() == ["2", "3", "Intel(R)"]
    # The line that is printed is the one that runs.
    printed = desk.envbuild(*line, "--dry-run", "--", "python", "program.py", "0").stdout
    assert printed.startswith(f"{intel.prefix}/bin/mpiexec -n 2 ")
    assert desk.run(shlex.split(printed)).stdout.split() == ["2", "3", "Intel(R)"]
