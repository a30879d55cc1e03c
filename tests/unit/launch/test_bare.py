"""Ranks without a container: the words that start them on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.image.model import Variable
from envbuild.launch.bare import BareEnvironment
from envbuild.launch.launchers import Shape
from envbuild.launch.launchers.mpiexec import Mpiexec
from envbuild.launch.launchers.srun import Srun
from envbuild.launch.start import line_of_ranks
from envbuild.system import host
from envbuild.system.apptainer import Bind
from tests.unit.jobs.stage import container

BARE = BareEnvironment(directory=Path("/tmp/env"), version="3.11.2")
VARIABLES = (
    Variable(name="PATH", operation="prepend", value="/opt/env/bin:/opt/mpi/bin"),
    Variable(name="LD_LIBRARY_PATH", operation="prepend", value="/opt/fabric/lib:/opt/mpi/lib"),
    Variable(name="OPAL_PREFIX", operation="set", value="/opt/mpi"),
    Variable(name="SSL_CERT_FILE", operation="set", value="/etc/ssl/of-the-image.pem"),
    Variable(name="LEVEL", operation="set", value="2"),
    Variable(name="PYTHONPATH", operation="unset"),
)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "environment", lambda: {"PATH": "/usr/bin"})


def words_of(line: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a line sets, and its further words."""
    assert line[0] == "env"
    count = next(number for number, word in enumerate(line[1:], 1) if "=" not in word)
    return dict(word.split("=", 1) for word in line[1:count]), line[count:]


def test_ranks_get_the_image_s_variables_and_see_what_a_container_would(tmp_path: Path) -> None:
    files = Bind(source=tmp_path / "envbuild", target="/.envbuild")
    subject = replace(container(environment=VARIABLES), bare=BARE, binds=(files,))
    command = [BARE.python, "-s", "/.envbuild/jobs/envbuild_job.py"]
    launcher = Mpiexec(program="mpiexec", family="mpich")
    line = line_of_ranks(
        subject, launcher, command, Shape(ranks=2), variables={"ENVBUILD_TOKEN": "t"}, results=tmp_path
    )
    variables, words = words_of(line)
    assert words == ["mpiexec", "-n", "2", BARE.python, "-s", f"{tmp_path}/envbuild/jobs/envbuild_job.py"]
    assert variables["PATH"] == "/tmp/env/bin:/usr/bin"
    assert variables["LD_LIBRARY_PATH"] == "/tmp/env/lib"
    assert (variables["OPAL_PREFIX"], variables["LEVEL"]) == ("/tmp/env", "2")
    # Its own Python is below /tmp, which in a container would be the directory of results.
    assert variables["ENVBUILD_RESULTS"] == str(tmp_path)
    assert variables["ENVBUILD_TOKEN"] == "t"
    assert not {"SSL_CERT_FILE", "PYTHONPATH"} & variables.keys()


def test_tasks_of_srun_need_no_variables_of_separate_containers(tmp_path: Path) -> None:
    subject = replace(container(), bare=BARE)
    launcher = Srun(pmi="pmi2", family="mpich")
    line = line_of_ranks(subject, launcher, ["job"], Shape(ranks=2), results=tmp_path)
    assert line[:4] == ["srun", "--mpi=pmi2", "-n", "2"]
    variables, words = words_of(line[4:])
    assert words == ["job"]
    assert "MPIR_CVAR_CH4_CMA_ENABLE" not in variables
    assert variables["MPIR_CVAR_CH4_NETMOD"] == "ofi"
