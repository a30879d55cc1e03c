"""A module whose commands run on the host's MPI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.integration.vendor.test_launch import PROGRAM
from tests.support.hostmpi import HostMpi


@pytest.mark.slow  # test_launch.py starts such ranks, and tests/unit/launch compares the module with it
@pytest.mark.parametrize("form", ["copied", "linked"])
def test_ranks_of_a_module_run_on_the_host_s_mpi(
    desk: Desk, image_on: Callable[[str], Path], host_mpi: Callable[[str], HostMpi], form: str
) -> None:
    desk.write("program.py", PROGRAM)
    intel = host_mpi("intel-mpi")
    site = desk.write("intel.yaml", intel.site())
    root = desk.place / f"modules-{form}"
    image = image_on("mpich")
    install: list[str | Path] = ["module", "install", image, "--root", root]
    install += ["--link"] if form == "linked" else []
    desk.envbuild(*install, "--site", site, "--mpi", "host")
    assert bool(list(root.rglob("*.sif"))) is (form == "copied")
    commands = root / "envs/on-mpich/1/bin"
    # The host's own mpiexec is the one that is found.
    assert not (commands / "mpiexec").exists()
    line: list[str | Path] = [intel.prefix / "bin/mpiexec", "-n", "2", commands / "python", "program.py", "0"]
    assert desk.run(line).stdout.split() == ["2", "3", "Intel(R)"]

    library = intel.prefix / "lib/libfabric.so.1"
    gone = library.rename(library.with_name("gone"))
    try:
        said = desk.run([commands / "python", "-c", "pass"], code=124).stderr
    finally:
        gone.rename(library)
    assert f"needs a file of the host that is missing: {library}" in said

    # On its own MPI it is another release, with its own mpiexec.
    desk.envbuild(*install)
    done = desk.run([commands / "mpiexec", "-n", "2", "python", "program.py", "0"])
    assert done.stdout.split() == ["2", "3", "MPICH"]
