"""Activation: `module load`, then a program of the image, with the real Lmod."""

import os
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, locked_versions

LMOD = "/usr/share/lmod/lmod/init/bash"


def in_login(desk: Desk, script: str, code: int = 0) -> str:
    finished = desk.run(["bash", "-c", f"source {LMOD}; {script}"], code=code)
    return finished.stdout + finished.stderr


@pytest.mark.slow  # in `make test` jobs/test_controls.py has one job of the MPI and one of PyTorch
def test_the_whole_main_job(desk: Desk, image: Path) -> None:
    said = desk.envbuild("module", "install", image, "--root", "modules").stderr
    assert "warning" in said, "an image without a verdict is installed with a warning"
    desk.envbuild("test", image, "--report", "report.json")
    said = desk.envbuild("module", "install", image, "--root", "modules").stderr
    assert "warning" not in said
    desk.write("train.py", "import sys, torch\nprint(torch.__version__, sys.prefix, *sys.argv[1:])\n")
    use = f"module use {desk.place}/modules/modulefiles; module load pytorch-mpi/2026.11; "
    torch = locked_versions(desk)["torch"]
    printed = in_login(desk, use + "python train.py a \"'b c'\"")
    assert printed.startswith(torch)
    assert printed.endswith(" /opt/env a 'b c'\n")
    shown = " ".join(in_login(desk, use + "module help pytorch-mpi/2026.11").split())
    assert f"Tested: run envbuild status --root {desk.place}/modules pytorch-mpi/2026.11" in shown
    assert desk.envbuild("status", "--root", "modules", "pytorch-mpi").stdout.startswith("PASS ")
    assert "HYDRA" in in_login(desk, use + "mpiexec --version")


def test_a_linked_module_runs_the_image_where_it_lies(desk: Desk, small_image: Path) -> None:
    place = desk.place / "linked.sif"
    shutil.copy(small_image, place)
    desk.envbuild("module", "install", place, "--root", "linked", "--link")
    assert not list((desk.place / "linked").rglob("*.sif")), "a link copies no image"
    use = f"module use {desk.place}/linked/modulefiles; module load on-mpich/1"
    line = f"{use} && python -c 'import mpi4py, sys; print(sys.prefix)'"
    assert in_login(desk, line) == "/opt/env\n"
    os.utime(place, (0, 0))
    commands = desk.place / "linked/envs/on-mpich/1/bin"
    changed = f"the image of on-mpich/1 has changed since it was installed: {place}"
    assert changed in desk.run([commands / "python", "-c", "pass"], code=121).stderr
    # Lmod breaks lines.
    assert changed in " ".join(in_login(desk, line, code=1).split())
    place.unlink()
    missing = f"the image of on-mpich/1 is missing: {place}"
    assert missing in desk.run([commands / "python", "-c", "pass"], code=121).stderr
    assert missing in " ".join(in_login(desk, line, code=1).split())


def test_the_wrapper_is_transparent(desk: Desk, small_image: Path) -> None:
    desk.envbuild("module", "install", small_image, "--root", "modules")
    use = f"module use {desk.place}/modules/modulefiles; module load on-mpich/1; "
    for code in (0, 7, 139):
        in_login(desk, use + f"python -c 'import sys; sys.exit({code})'", code=code)
