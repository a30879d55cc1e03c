"""`envbuild test --launcher srun` under a real Slurm: what passes, and what a wrong PMI comes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Desk, make_desk, recipe_versions
from tests.support.slurm import Cluster, running

Images = Callable[[str], Path]
MARK = "604803.5"

# A job as `envbuild test` runs it, by an srun with another --mpi than it would take.
TRY = """\
import json
import sys
from pathlib import Path
from envbuild.jobs.run import run_job
from envbuild.launch.launchers import Shape
from envbuild.launch.launchers.srun import Srun
from envbuild.launch.start import Container, results_directory, start_ranks
from envbuild.image.file import ImageFile
from envbuild.system.apptainer import find

image, family, kind, limit_s, *instead = sys.argv[1:]
with ImageFile.open(Path(image)) as opened:
    container = Container(image=Path(image), runnable=opened.manifest, apptainer=find())
launcher = Srun(pmi=kind, family=family)

def start(command, ranks, *rest):
    return start_ranks(container, launcher, instead or command, Shape(ranks=ranks), *rest)

(job,) = (job for job in container.jobs if job.id == "mpi.collectives")
with results_directory(Path.cwd()) as directory:
    result = run_job(job, start, directory, ranks=2, limit_s=float(limit_s))
print(json.dumps([[each.status, each.id, each.observed, each.hint] for each in result.checks]))
"""


def report_of(login: Desk, *words: str | Path, code: int = 0, **options: Any) -> Any:
    return json.loads(
        login.envbuild("test", *words, "--launcher", "srun", "--json", code=code, **options).stdout
    )


def found(report: Any, check: str) -> Any:
    (finding,) = (finding for finding in report["findings"] if finding["id"] == check)
    return finding


def assert_four_talk(report: Any) -> None:
    assert report["passed"] is True
    # Jobs that want all ranks in one container are the image's own mpiexec's.
    skipped = [each for each in report["findings"] if each["status"] == "SKIP"]
    assert {each["hint"] for each in skipped} <= {"all its ranks must be in one container"}
    assert all(each["id"].startswith(("mpi.ofi", "mpi.ucx")) for each in skipped)
    assert found(report, "mpi.collectives/ranks")["observed"] == "ranks=0,1,2,3 size=4 processes=4"
    assert found(report, "mpi.collectives/sum")["observed"] == "10"


@pytest.mark.parametrize(
    ("mpi", "pmi"),
    [
        ("mpich", "pmi2"),
        # In `make test` test_module.py and test_launch.py start ranks by PMIx; `make cluster` tests them.
        pytest.param("openmpi", "pmix", marks=pytest.mark.slow),
        pytest.param("openmpi-debian", "pmix", marks=pytest.mark.slow),
    ],
)
def test_ranks_on_two_nodes_are_proven(login: Desk, image_on: Images, mpi: str, pmi: str) -> None:
    image = image_on(mpi)
    report = report_of(login, image, "--ranks", "4", env={"SLURM_NTASKS_PER_NODE": "2"})
    assert_four_talk(report)
    # A verdict on ranks that srun starts, and not on the image's own mpiexec.
    version = login.run(["srun", "--version"]).stdout.strip()
    assert report["launcher"] == f"{version} --mpi={pmi}"
    # Nothing is left where the ranks reported.
    assert not list(login.place.glob("envbuild-test-*"))


@pytest.mark.slow  # test_launch.py starts ranks in an allocation
def test_an_allocation_says_how_many(login: Desk, image_on: Images) -> None:
    line: list[str | Path] = [login.command, "test", image_on("mpich"), "--launcher", "srun", "--json"]
    resolved = ["salloc", "--quiet", "-N2", "-n4", "--ntasks-per-node=2"]
    assert_four_talk(json.loads(login.run([*resolved, *line]).stdout))
    # Fewer than the job has, on its nodes.
    three = json.loads(login.run([*resolved, *line, "--ranks", "3"]).stdout)
    assert found(three, "mpi.collectives/ranks")["observed"] == "ranks=0,1,2 size=3 processes=3"


def test_in_a_batch_job(login: Desk, image_on: Images) -> None:
    test = f"{login.command} test {image_on('mpich')} --launcher srun --report batch.json"
    login.write("test.sh", f"#!/bin/bash\n#SBATCH -N2 -n4 --ntasks-per-node=2\n#SBATCH -o test.out\n{test}\n")
    login.run(["sbatch", "--quiet", "--wait", "test.sh"])
    assert_four_talk(json.loads((login.place / "batch.json").read_text()))


def test_as_root(login: Desk, shared: Path, image_on: Images) -> None:
    root = make_desk(shared, "root-tests", login.command)
    root = replace(root, cluster=login.cluster, env=login.env, root=True)
    assert_four_talk(report_of(root, image_on("mpich"), "--ranks", "4", env={"SLURM_NTASKS_PER_NODE": "2"}))


def tried(login: Desk, image: Path, family: str, kind: str, limit: str, *instead: str) -> list[list[str]]:
    python = login.command.with_name("python")
    script = login.write("try.py", TRY)
    done = login.run([python, script, image, family, kind, limit, *instead])
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("mpi", "kind"),
    [("mpich", "none"), ("mpich", "cray_shasta"), ("openmpi", "none"), ("openmpi", "pmi2")],
)
def test_a_wrong_pmi_is_told_as_singletons(login: Desk, image_on: Images, mpi: str, kind: str) -> None:
    status, check, observed, hint = tried(login, image_on(mpi), mpi, kind, "60")[0]
    assert (status, check, observed) == ("FAIL", "mpi.collectives/ranks", "ranks=0,0 size=1 processes=2")
    assert hint.startswith(
        "2 singletons, each rank 0 of 1: launcher and MPI library do not speak the same PMI; "
    )
    assert "the right type of `srun --mpi`" in hint


def test_a_pmi_that_the_image_s_mpi_lacks_is_refused_before_anything_starts(
    login: Desk, image_on: Images
) -> None:
    # MPICH may have been built with PMIx; the one of images was not.
    site = login.write("pmix.yaml", "name: pmix\nscheduler: {name: slurm, mpi_types: [pmix]}\n")
    version = recipe_versions(login, image_on("mpich"))["mpich"]
    said = login.envbuild("test", image_on("mpich"), "--launcher", "srun", "--site", site, code=2).stderr
    assert f"PMI.intersection: mpich {version} speaks pmi2, and `srun --mpi` offers pmix" in said


@pytest.mark.slow  # jobs/test_containment ends those of one machine
def test_nothing_is_left_of_ranks_whose_time_is_up(login: Desk, cluster: Cluster, image_on: Images) -> None:
    findings = tried(login, image_on("mpich"), "mpich", "pmi2", "15", "sleep", MARK)
    assert [each[0] for each in findings[:2]] == ["FAIL", "FAIL"]
    assert findings[1][2] == "ended after 15 s"
    cluster.await_idle()
    assert f"sleep {MARK}" not in running()


def test_a_directory_that_only_one_node_has_is_told(login: Desk, image_on: Images) -> None:
    # /tmp is each node's own, and the login node's is this machine's.
    report = report_of(login, image_on("mpich"), cwd=Path("/tmp"), code=4)
    assert found(report, "mpi.collectives/ranks")["status"] == "FAIL"
    assert "envbuild-test-" in report["outputs"]["mpi.collectives"]


def test_a_directory_that_cannot_be_written_is_refused(login: Desk, image_on: Images) -> None:
    said = login.envbuild("test", image_on("mpich"), "--launcher", "srun", cwd=Path("/usr"), code=2).stderr
    assert said.startswith(
        "error: nothing can be written in `/usr`, where the ranks would leave their reports"
    )
    assert "start the test in a directory of yours that all nodes share" in said


@pytest.mark.slow  # in `make test` the host's MPI runs without Slurm: tests/integration/vendor
def test_the_host_s_mpi_under_srun(login: Desk, image_on: Images, host_mpi: Callable[[str], Any]) -> None:
    host = host_mpi("mpich")
    site = login.write("host.yaml", host.site() + "scheduler: {name: slurm}\n")
    options: list[str | Path] = ["--site", site, "--mpi", "host", "--ranks", "4"]
    report = report_of(login, image_on("mpich"), *options, env={"SLURM_NTASKS_PER_NODE": "2"})
    assert_four_talk(report)
    assert found(report, "host.mpi")["status"] == "PASS"
    assert "MPICH Version" in found(report, "host.mpi")["observed"]
