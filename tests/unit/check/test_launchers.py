from __future__ import annotations

from typing import get_args

import pytest

from envbuild.check.launchers.base import Launcher
from envbuild.check.launchers.known import launcher_named
from envbuild.check.launchers.mpiexec import Mpiexec
from envbuild.check.launchers.torchrun import Torchrun
from envbuild.spec.recipe import LauncherName

RUNTIME = ["apptainer", "exec", "image.sif"]
JOB = ["python", "-s", "job.py"]


@pytest.mark.parametrize(
    ("family", "root", "words"),
    [
        ("mpich", False, "mpiexec -n 4"),
        ("mpich", True, "mpiexec -n 4"),
        ("intel-mpi", True, "mpiexec -n 4"),
        ("openmpi", False, "mpiexec --map-by :OVERSUBSCRIBE -n 4"),
        ("openmpi", True, "mpiexec --allow-run-as-root --map-by :OVERSUBSCRIBE -n 4"),
    ],
)
def test_command_lines(family: str, root: bool, words: str) -> None:
    launcher: Launcher = Mpiexec(family=family, root=root)
    assert launcher.command(RUNTIME, JOB, 4) == [*RUNTIME, *words.split(), *JOB]
    assert launcher.command([], JOB, 4) == [*words.split(), *JOB]
    assert launcher.environment() == {}


def test_torchrun_stays_on_the_loopback() -> None:
    launcher: Launcher = Torchrun()
    words = "torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 4 --no-python"
    assert launcher.command(RUNTIME, JOB, 4) == [*RUNTIME, *words.split(), *JOB]
    assert launcher.command([], JOB, 4) == [*words.split(), *JOB]
    assert launcher.environment() == {}


def test_the_list_is_closed_and_the_recipes() -> None:
    for name in get_args(LauncherName):
        assert launcher_named(name, family="mpich", root=False) is not None
    assert launcher_named("mpiexec", family="openmpi", root=True) == Mpiexec(family="openmpi", root=True)
    assert launcher_named("mpiexec", family="", root=False) is None
    assert launcher_named("torchrun", family="", root=False) == Torchrun()
    with pytest.raises(ValueError, match="`sh` is not a launcher"):
        launcher_named("sh", family="mpich", root=False)
