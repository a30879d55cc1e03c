"""An installed module under a real Slurm: `module load`, then srun starts its commands."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from tests.integration.conftest import Desk
from tests.integration.main_job.test_activate import LMOD
from tests.integration.slurm.conftest import ranks_told
from tests.integration.slurm.test_launch import FOUR, Images

Loaded = Callable[[str, str], CompletedProcess[str]]
ALONE = [["0", "1", "1", "n1"], ["0", "1", "1", "n1"], ["0", "1", "1", "n2"], ["0", "1", "1", "n2"]]


# The same launcher starts both: tests/unit/activate compares what `copy` and `link` install.
@pytest.fixture(params=[pytest.param("copy", marks=pytest.mark.slow), "link"])
def loaded(request: pytest.FixtureRequest, login: Desk, image_on: Images) -> Loaded:
    """Run a line of bash on the login node, where a module of the image on an MPI is loaded."""
    link = ["--link"] if request.param == "link" else []
    root = login.place / f"modules-{request.param}"

    def run(mpi: str, line: str) -> CompletedProcess[str]:
        login.envbuild("module", "install", image_on(mpi), "--root", root, *link)
        use = f"source {LMOD}; module use {root}/modulefiles; module load on-{mpi}/1; "
        return login.run(["bash", "-c", use + line], env={"SLURM_NTASKS_PER_NODE": "2"})

    return run


@pytest.mark.parametrize(("mpi", "pmi"), [("mpich", "pmi2"), ("openmpi", "pmix")])
def test_srun_starts_the_module_s_python(loaded: Loaded, mpi: str, pmi: str) -> None:
    done = loaded(mpi, f"srun --mpi={pmi} -n 4 python ranks.py 0")
    assert ranks_told(done.stdout) == FOUR
    assert "envbuild:" not in done.stderr


@pytest.mark.parametrize(("mpi", "kind"), [("mpich", "none"), ("openmpi", "none"), ("openmpi", "pmi2")])
def test_ranks_that_will_be_alone_are_warned_of_once(loaded: Loaded, mpi: str, kind: str) -> None:
    done = loaded(mpi, f"srun --mpi={kind} -n 4 python ranks.py 0")
    assert ranks_told(done.stdout) == ALONE
    warned = [line for line in done.stderr.splitlines() if line.startswith("envbuild:")]
    assert len(warned) == 1
    assert warned[0].startswith(f"envbuild: 4 tasks: {mpi} ")
    assert f"and srun started them with {kind}: each rank would run as rank 0 of 1" in warned[0]
