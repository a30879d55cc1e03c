"""Activation: `module load`, then a program of the image, with the real Lmod."""

from pathlib import Path

from tests.integration.conftest import Desk, locked_versions

LMOD = "/usr/share/lmod/lmod/init/bash"


def in_login(desk: Desk, script: str, code: int = 0) -> str:
    finished = desk.run(["bash", "-c", f"source {LMOD}; {script}"], code=code)
    return finished.stdout + finished.stderr


def test_the_whole_main_job(desk: Desk, image: Path) -> None:
    """The only test that runs all jobs of the example; others run some of them, or those of a small image."""
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
    assert "passed" in in_login(desk, use + "module help pytorch-mpi/2026.11")
    assert "HYDRA" in in_login(desk, use + "mpiexec --version")


def test_thin_runs_from_the_stores_layers(desk: Desk, image: Path) -> None:
    desk.envbuild("module", "install", image, "--root", "thin", "--thin")
    assert not list((desk.place / "thin").rglob("*.sif")), "a thin installation copies no image"
    use = f"module use {desk.place}/thin/modulefiles; module load pytorch-mpi; "
    printed = in_login(desk, use + "python -c 'import torch; print(torch.__version__)'")
    assert printed.startswith(locked_versions(desk)["torch"])


def test_the_wrapper_is_transparent(desk: Desk, small_image: Path) -> None:
    desk.envbuild("module", "install", small_image, "--root", "modules")
    use = f"module use {desk.place}/modules/modulefiles; module load on-mpich/1; "
    for code in (0, 7, 139):
        in_login(desk, use + f"python -c 'import sys; sys.exit({code})'", code=code)
