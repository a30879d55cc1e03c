"""The main job's image as an OCI archive: podman and crun start it, and its ranks find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.other_runtimes import started_by
from tests.support.users import shared_directory

# Packing, unpacking and mini jobs take 20 s a runtime; image/test_runtimes has the rest, with a small image.
pytestmark = pytest.mark.slow

JUDGE = "/usr/bin/python3 -I /.envbuild/judge.py test -v"


@pytest.fixture(scope="module")
def archive(desk: Desk, small_image: Path) -> Path:
    desk.envbuild("export", small_image, "--format", "oci", "-o", "archive")
    return desk.place / "archive"


@pytest.mark.parametrize("runtime", ["crun", "podman"])
def test_ranks_find_each_other(runtime: str, archive: Path) -> None:
    with shared_directory() as work, started_by(runtime, archive, work) as run:
        output = run(script=f"command -v python mpiexec && {JUDGE}").splitlines()
        assert output[:2] == ["/opt/env/bin/python", "/opt/mpi/bin/mpiexec"]
        assert ": passed: " in output[-1]
        assert not [line for line in output if line.startswith("FAIL")]
        ranks = 'expected="ranks=0,1 size=2 processes=2" observed="ranks=0,1 size=2 processes=2"'
        assert any(line.startswith(f"     PASS mpi.collectives/ranks {ranks}") for line in output)
        rank = 'python -c "from mpi4py.MPI import COMM_WORLD as w; print(w.rank, w.size)"'
        assert sorted(run(script=f"mpiexec -n 2 {rank}").splitlines()) == ["0 2", "1 2"]
        # The tests can fail: two processes without their launcher, and an image without its variables.
        assert run(script=f"{rank}; {rank}").splitlines() == ["0 1", "0 1"]
        run(script="unset PATH; mpiexec -n 2 true", code=127)
