"""Activation: `module load`, then a program of the image, with the real Lmod."""

from pathlib import Path

from tests.integration.conftest import Desk

LMOD = "/usr/share/lmod/lmod/init/bash"


def in_login(desk: Desk, script: str, code: int = 0) -> str:
    finished = desk.run(["bash", "-c", f"source {LMOD}; {script}"], code=code)
    return finished.stdout + finished.stderr


def test_module_load_then_python_runs_inside_the_image(desk: Desk, image: Path) -> None:
    said = desk.envbuild("module", "install", image, "--root", "modules").stderr
    assert "warning" in said, "no verdict yet: that is a warning"
    desk.envbuild("test", image, "--report", "report.json")
    said = desk.envbuild("module", "install", image, "--root", "modules").stderr
    assert "warning" not in said
    desk.write("train.py", "import sys, torch\nprint(torch.__version__, sys.prefix, *sys.argv[1:])\n")
    use = f"module use {desk.place}/modules/modulefiles; module load pytorch-mpi/2026.11; "
    assert "2.13.0+cpu /opt/env a 'b c'" in in_login(desk, use + "python train.py a \"'b c'\"")
    assert "passed" in in_login(desk, use + "module help pytorch-mpi/2026.11")
    assert "HYDRA" in in_login(desk, use + "mpiexec --version")


def test_thin_runs_from_the_stores_layers(desk: Desk, image: Path) -> None:
    desk.envbuild("module", "install", image, "--root", "thin", "--thin")
    assert not list((desk.place / "thin").rglob("*.sif")), "a thin installation copies no image"
    use = f"module use {desk.place}/thin/modulefiles; module load pytorch-mpi; "
    assert "2.13.0+cpu" in in_login(desk, use + "python -c 'import torch; print(torch.__version__)'")


def test_the_wrapper_is_transparent(desk: Desk, image: Path) -> None:
    desk.envbuild("module", "install", image, "--root", "modules")
    use = f"module use {desk.place}/modules/modulefiles; module load pytorch-mpi/2026.11; "
    for code in (0, 7, 139):
        in_login(desk, use + f"python -c 'import sys; sys.exit({code})'", code=code)
