from __future__ import annotations

import pytest

from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.mpiexec import Mpiexec

RUNTIME = ["apptainer", "exec", "image.sif"]
JOB = ["python", "-s", "job.py"]


@pytest.mark.parametrize(
    ("mpi", "root", "words"),
    [
        ("mpich", False, "mpiexec -n 4"),
        ("mpich", True, "mpiexec -n 4"),
        ("intel-mpi", True, "mpiexec -n 4"),
        ("openmpi", False, "mpiexec --map-by :OVERSUBSCRIBE -n 4"),
        ("openmpi", True, "mpiexec --allow-run-as-root --map-by :OVERSUBSCRIBE -n 4"),
    ],
)
def test_command_lines(mpi: str, root: bool, words: str) -> None:
    launcher: Launcher = Mpiexec(mpi=mpi, root=root)
    assert launcher.command(RUNTIME, JOB, 4) == [*RUNTIME, *words.split(), *JOB]
    assert launcher.command([], JOB, 4) == [*words.split(), *JOB]
    assert launcher.environment() == {}
