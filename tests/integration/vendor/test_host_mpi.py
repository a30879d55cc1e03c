"""Images on another MPI than their own: one that is installed on the host, outside of every image.

A representative part; `make vendor` has every pair, with what is compiled against the standard ABI.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.image.file import ImageFile
from envbuild.jobs.judge import LaunchResult
from envbuild.jobs.run import run_job
from envbuild.launch.launchers import Shape
from envbuild.launch.launchers.mpiexec import Mpiexec
from envbuild.launch.loaded import HOST_MPI, judge_host_mpi
from envbuild.launch.start import Container, own_launcher, results_directory, run_image_job, start_ranks
from envbuild.site.host_libs import HOST_LIB_DIR, HostLibraryPlan
from envbuild.workflows.hosting import HostLibraries, host_libraries_for
from envbuild.workflows.settings import Settings
from tests.integration.conftest import Desk, recipe_versions
from tests.support.controls import container_of
from tests.support.elves import Elf
from tests.support.hostmpi import HostMpi, unpack

Images = Callable[[str], Path]
Hosts = Callable[[str], HostMpi]


def run_on(desk: Desk, image: Path, site: str, *, code: int = 0) -> Any:
    """Test an image on the MPI of a site and return the report, or what was said where it was refused."""
    path = desk.write("site.yaml", site)
    done = desk.envbuild("test", image, "--site", path, "--mpi", "host", "--json", code=code)
    return done.stderr if code == 2 else json.loads(done.stdout)


def from_host(report: Any) -> Any:
    (finding,) = (finding for finding in report["findings"] if finding["id"] == HOST_MPI)
    return finding


@pytest.mark.slow  # `make vendor` has every pair; test_module has ranks on one
@pytest.mark.parametrize(
    ("inside", "host", "says"),
    [
        ("mpich", "intel-mpi", "Intel(R) MPI Library"),
        # Open MPI 4.1 in the image, 5 on the host.
        pytest.param("openmpi-debian", "openmpi", "Open MPI v5.", marks=pytest.mark.slow),
    ],
)
def test_an_image_runs_its_jobs_on_the_host_s_mpi(
    desk: Desk, image_on: Images, host_mpi: Hosts, inside: str, host: str, says: str
) -> None:
    report = run_on(desk, image_on(inside), host_mpi(host).site())
    assert report["passed"] is True
    skipped = [each for each in report["findings"] if each["status"] == "SKIP"]
    assert {each["hint"] for each in skipped} <= {"it is about the image's own"}
    assert all(each["id"].endswith("/launcher") for each in skipped)
    finding = from_host(report)
    assert finding["status"] == "PASS"
    assert says in finding["observed"]
    # Bound to a host that is used so, and not to the image on its own MPI.
    assert report["host"]["facts"]["mpi"].startswith(f"{host} ")


@pytest.mark.slow  # in `make test` a launcher of the host starts them
@pytest.mark.parametrize(("inside", "host"), [("mpich", "intel-mpi"), ("openmpi-debian", "openmpi")])
def test_the_image_s_own_launcher_starts_them_where_the_host_names_none(
    desk: Desk, image_on: Images, host_mpi: Hosts, inside: str, host: str
) -> None:
    report = run_on(desk, image_on(inside), host_mpi(host).site(launcher=False))
    assert report["passed"] is True
    assert from_host(report)["status"] == "PASS"


@pytest.mark.parametrize(("inside", "host"), [("openmpi", "intel-mpi"), ("mpich", "openmpi")])
@pytest.mark.slow  # unit/rules refuses it; `make vendor` tries all pairs
def test_another_abi_is_refused_before_anything_starts(
    desk: Desk, image_on: Images, host_mpi: Hosts, inside: str, host: str
) -> None:
    said = run_on(desk, image_on(inside), host_mpi(host).site(), code=2)
    assert said.startswith("error: MPI.abi-family: ")


@pytest.mark.slow  # in `make test` tests/unit judges symbols
def test_an_older_mpich_is_judged_by_its_symbols(
    desk: Desk, image_on: Images, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cray's MPI is made from MPICH 3.4: what an image on MPICH 5 calls may all be in it, and may not."""
    wheels = tmp_path_factory.mktemp("wheels")
    words = ["--quiet", "--no-deps", "--only-binary=:all:", f"--dest={wheels}", "mpich==3.4.3"]
    subprocess.run([sys.executable, "-m", "pip", "download", *words], check=True, timeout=600)
    old = unpack("mpich", wheels, desk.place / "host-old-mpich")
    site = desk.write("old-mpich.yaml", old.site())
    done = desk.envbuild("test", image_on("mpich"), "--site", site, "--mpi", "host", "--json")
    version = recipe_versions(desk, image_on("mpich"))["mpich"]
    assert f"MPI.swap-direction: the image's MPICH is {version}" in done.stderr
    assert "MPICH Version: 3.4.3 in 2 processes" in from_host(json.loads(done.stdout))["observed"]

    # A program that calls what MPI-4 brought.
    caller = Elf(needed=("libmpi.so.12",), undefined=("MPI_Init", "MPI_Session_init"))
    (desk.place / "caller.so").write_bytes(caller.bytes())
    spec = "name: calls\nversion: '1'\nbase: debian-12\nmpi: mpich\nframeworks: []\n"
    desk.write("calls.yaml", f"{spec}files: [{{source: caller.so, target: /srv/caller.so}}]\n")
    desk.envbuild("build", "calls.yaml")
    said = desk.envbuild("test", "calls.sif", "--site", site, "--mpi", "host", code=2).stderr
    assert said.count("error: ") == 1
    assert "error: loader.symbols: /srv/caller.so needs MPI_Session_init of mpi and gets " in said


def test_open_mpi_1_10_is_refused_whatever_its_name(desk: Desk, image_on: Images) -> None:
    library = desk.place / "old/libmpi.so.12"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(Elf(soname="libmpi.so.12", defined=("MPI_Init", "ompi_mpi_comm_world")).bytes())
    site = f"name: old\nmpi: {{implementation: openmpi, libraries: [{library}]}}\n"
    said = run_on(desk, image_on("mpich"), site, code=2)
    assert said.startswith("error: MPI.openmpi-1.10-is-not-mpich: ")


@pytest.mark.slow  # in `make test` slurm/test_verdict.py has it
def test_nothing_is_left_of_ranks_whose_time_is_up(
    planned: tuple[Container, HostLibraryPlan], host_mpi: Hosts, tmp_path: Path
) -> None:
    container, plan = planned
    plan.fill_stage(tmp_path / "stage")
    program = f"{host_mpi('intel-mpi').prefix}/bin/mpiexec"
    launcher = Mpiexec(program=program, family="intel-mpi", spans_nodes=True)
    container = replace(container, host_libs=plan, stage=tmp_path / "stage")
    mark = "604801.5"

    def hang(command: Sequence[str], ranks: int, *rest: Any) -> LaunchResult:
        return start_ranks(container, launcher, ["sleep", mark], Shape(ranks=ranks), *rest)

    (job,) = (job for job in container.jobs if job.id == "mpi.collectives")
    with results_directory() as directory:
        result = run_job(job, hang, directory, ranks=2, limit_s=15.0)
    assert [finding.status for finding in result.checks[:2]] == ["FAIL", "FAIL"]
    for _ in range(50):
        listed = subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
        if f"sleep {mark}" not in listed:
            break
        time.sleep(0.1)
    assert f"sleep {mark}" not in listed


@pytest.fixture
def planned(desk: Desk, image_on: Images, host_mpi: Hosts) -> tuple[Container, HostLibraryPlan]:
    """The image on MPICH, and what Intel MPI lends it."""
    image = image_on("mpich")
    site = desk.write("site.yaml", host_mpi("intel-mpi").site())
    settings = Settings.of(store=desk.store, apptainer=None, recipes=None, site=site)
    with ImageFile.open(image) as opened:
        plan = host_libraries_for(opened, settings, HostLibraries(mpi=True))
    assert plan is not None
    return container_of(image), plan


def finding_of(
    container: Container, plan: HostLibraryPlan, stage: Path, *, judged_by: HostLibraryPlan
) -> str:
    plan.fill_stage(stage)
    (job,) = (job for job in container.jobs if job.id == "mpi.collectives")
    launcher = own_launcher(container)
    assert launcher is not None
    hosted = replace(container, host_libs=plan, stage=stage)
    result = run_image_job(hosted, launcher, job, shape=Shape(ranks=2), limit_s=120.0)
    # The ranks talk all the same, which is why talking proves nothing here.
    assert {finding.status for finding in result.checks} == {"PASS"}
    return judge_host_mpi(result.reports, judged_by).status


def test_the_proof_fails_where_the_image_s_own_library_was_loaded(
    planned: tuple[Container, HostLibraryPlan], tmp_path: Path
) -> None:
    container, plan = planned
    own = plan.environment["LD_LIBRARY_PATH"].removeprefix(f"{HOST_LIB_DIR}:")
    without = replace(plan, environment={**plan.environment, "LD_LIBRARY_PATH": own})
    assert finding_of(container, plan, tmp_path / "a", judged_by=plan) == "PASS"
    assert finding_of(container, without, tmp_path / "b", judged_by=plan) == "FAIL"


def test_the_proof_fails_for_a_copy_that_is_another_file(
    planned: tuple[Container, HostLibraryPlan], tmp_path: Path
) -> None:
    container, plan = planned
    changed = tmp_path / "libmpi.so.12"
    changed.write_bytes(Path(plan.files["libmpi.so.12"]).read_bytes() + b"\0")
    other = replace(plan, files={**plan.files, "libmpi.so.12": str(changed)})
    assert finding_of(container, other, tmp_path / "stage", judged_by=plan) == "FAIL"
