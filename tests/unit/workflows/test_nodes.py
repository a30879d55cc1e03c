"""Work on several nodes: what is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.launch.launchers.mpiexec import Mpiexec
from envbuild.launch.launchers.srun import Srun
from envbuild.launch.schedulers import site_reaches_nodes
from envbuild.spec.site import Site, SiteMpi
from envbuild.workflows.nodes import check_reaches

OWN = Mpiexec(program="mpiexec", family="mpich")
OF_SITE = Site(name="here", mpi=SiteMpi(implementation="mpich", launcher="/h/mpiexec"))


@pytest.fixture(autouse=True)
def job_of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    monkeypatch.setenv("PBS_JOBID", "7.server")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))


def test_a_launcher_of_one_machine_is_refused_for_several() -> None:
    with pytest.raises(
        RequestError, match="mpiexec starts all ranks on this machine, and 2 nodes"
    ) as refused:
        check_reaches(OWN, 2, None)
    assert "the job has 2 nodes, and nothing of it starts ranks on the others" in str(refused.value)
    check_reaches(OWN, 1, None)
    check_reaches(Srun(family="mpich"), 2, None)


def test_the_mpiexec_of_the_site_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert site_reaches_nodes(OF_SITE)
    assert not site_reaches_nodes(Site(name="here"))
    monkeypatch.delenv("PBS_JOBID")
    assert not site_reaches_nodes(OF_SITE)
