"""The proof that ranks ran on the host's MPI."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.launch.loaded import HOST_MPI, judge_host_mpi, judge_nccl, judge_site_software
from envbuild.site.host_libs import HOST_LIB_DIR, HostLibraryPlan
from envbuild.spec.site import Site, SiteFabric, SiteMpi
from tests.unit.jobs.stage import report, reports

CONTENT = b"the host's MPI"


@pytest.fixture
def host_libs(tmp_path: Path) -> HostLibraryPlan:
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(CONTENT)
    return HostLibraryPlan(
        mpi=SiteMpi(implementation="intel-mpi", version="2021.18.0"),
        abis=("mpich",),
        mpi_files=("libmpi.so.12",),
        files={"libmpi.so.12": str(library)},
        environment={},
    )


def loaded(
    path: str = f"{HOST_LIB_DIR}/libmpi.so.12", content: bytes = CONTENT, version: str = "Intel(R) MPI"
) -> Mapping[str, object]:
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "version": version}


def test_all_ranks_on_the_host_s_file_pass(host_libs: HostLibraryPlan) -> None:
    both = reports(report(0, 2, mpi=[loaded()]), report(1, 2, mpi=[loaded(f"{HOST_LIB_DIR}/libmpi.so")]))
    finding = judge_host_mpi([both], host_libs)
    assert (finding.status, finding.id) == ("PASS", HOST_MPI)
    assert finding.observed == "Intel(R) MPI in 2 processes"


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([loaded("/opt/mpi/lib/libmpi.so.12", version="MPICH 5")], "/opt/mpi/lib/libmpi.so.12 (MPICH 5)"),
        ([loaded(content=b"the image's")], "is another file than"),
        ([loaded(), loaded("/opt/mpi/lib/libmpi.so.12")], "/opt/mpi/lib/libmpi.so.12"),
        ([{"path": f"{HOST_LIB_DIR}/libmpi.so.12", "sha256": ""}], "is another file than"),
    ],
    ids=["the image's own", "other bytes", "both", "unreadable"],
)
def test_one_rank_on_another_file_fails(host_libs: HostLibraryPlan, second: list[object], told: str) -> None:
    both = reports(report(0, 2, mpi=[loaded()]), report(1, 2, mpi=second))
    finding = judge_host_mpi([both], host_libs)
    assert finding.status == "FAIL"
    assert told in finding.observed


def test_nothing_loaded_proves_nothing(host_libs: HostLibraryPlan) -> None:
    assert judge_host_mpi([reports(report(0, 2, mpi=[]))], host_libs).status == "FAIL"
    silent = reports(report(0, 2, libraries=[f"{HOST_LIB_DIR}/libmpi.so.12"]))
    assert judge_host_mpi([silent], host_libs).status == "FAIL"


@pytest.mark.parametrize("junk", [None, 7, "text", ["text"], [{}], {"path": 1}])
def test_a_report_is_text_from_a_stranger(host_libs: HostLibraryPlan, junk: object) -> None:
    assert judge_host_mpi([reports(report(0, 2, mpi=junk))], host_libs).status == "FAIL"


ALPS = Site(name="alps", fabric=SiteFabric(name="slingshot-11", provider="cxi"))


@pytest.mark.parametrize(
    ("network", "transports", "hosts", "site", "status"),
    [
        ("AWS Libfabric", ["NET/AWS Libfabric", "P2P"], ("a", "b"), ALPS, "PASS"),
        ("Socket", ["NET/Socket", "P2P"], ("a", "b"), ALPS, "FAIL"),
        # On one host GPUs reach each other directly, and the network carries nothing.
        ("Socket", ["P2P"], ("a", "a"), ALPS, "PASS"),
        ("Socket", ["NET/Socket"], ("a", "a"), ALPS, "FAIL"),
        # A site that names no fabric may have nothing better.
        ("Socket", ["NET/Socket"], ("a", "b"), None, "PASS"),
    ],
)
def test_sockets_are_a_failure_where_the_site_has_better(
    network: str, transports: list[str], hosts: tuple[str, str], site: Site | None, status: str
) -> None:
    values = {"network": network, "transports": transports}
    both = reports(*(report(rank, 2, host=host, values=values) for rank, host in enumerate(hosts)))
    (check,) = judge_nccl([both], site)
    assert (check.status, check.id) == (status, "nccl.network")
    assert all(name in check.observed for name in (network, *transports))


def test_one_rank_proves_no_network() -> None:
    alone = reports(report(0, 1, values={"network": "Socket", "transports": []}))
    (check,) = judge_nccl([alone], ALPS)
    assert (check.status, check.observed) == ("SKIP", "Socket; no messages between ranks")


def test_jobs_that_say_nothing_of_nccl_are_not_judged() -> None:
    silent = reports(report(0, 1), report(0, 1, values={"network": "", "transports": []}))
    assert judge_nccl([silent], ALPS) == []


@pytest.mark.parametrize(
    ("path", "all_jobs", "status"),
    [
        (f"{HOST_LIB_DIR}/libfast.so.1", True, "PASS"),
        # A library of another recipe, and another file of that name.
        (f"{HOST_LIB_DIR}/libother.so.1", True, "FAIL"),
        ("/usr/lib/libfast.so.1", True, "FAIL"),
        ("/usr/lib/libfast.so.1", False, "SKIP"),
    ],
)
def test_some_process_must_have_loaded_the_software_of_the_site(
    path: str, all_jobs: bool, status: str
) -> None:
    plan = HostLibraryPlan(
        files={"libfast.so.1": "/opt/libfast.so.1"}, supplied={"fast": ("libfast.so.1",)}, environment={}
    )
    runs = [reports(report(0, 2, libraries=[]), report(1, 2, libraries=[path]))]
    (check,) = judge_site_software(runs, plan, all_jobs=all_jobs)
    assert (check.status, check.subject) == (status, "fast")
