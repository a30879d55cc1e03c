"""The proof that ranks ran on the host's MPI."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.launch.loaded import FROM_HOST, judge_host_mpi
from envbuild.site.inject import PRIVATE, Injection
from tests.unit.jobs.stage import report, reports

CONTENT = b"the host's MPI"


@pytest.fixture
def injection(tmp_path: Path) -> Injection:
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(CONTENT)
    return Injection(
        implementation="intel-mpi",
        version="2021.18.0",
        abis=("mpich",),
        mpi=("libmpi.so.12",),
        files={"libmpi.so.12": str(library)},
        links={"libmpi.so": "libmpi.so.12"},
        companions=(),
        environment={},
    )


def loaded(
    path: str = f"{PRIVATE}/libmpi.so.12", content: bytes = CONTENT, version: str = "Intel(R) MPI"
) -> Mapping[str, object]:
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "version": version}


def test_all_ranks_on_the_host_s_file_pass(injection: Injection) -> None:
    both = reports(report(0, 2, mpi=[loaded()]), report(1, 2, mpi=[loaded(f"{PRIVATE}/libmpi.so")]))
    finding = judge_host_mpi([both], injection)
    assert (finding.status, finding.id) == ("PASS", FROM_HOST)
    assert finding.observed == "Intel(R) MPI in 2 processes"


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ([loaded("/opt/mpi/lib/libmpi.so.12", version="MPICH 5")], "/opt/mpi/lib/libmpi.so.12 (MPICH 5)"),
        ([loaded(content=b"the image's")], "is another file than"),
        ([loaded(), loaded("/opt/mpi/lib/libmpi.so.12")], "/opt/mpi/lib/libmpi.so.12"),
        ([{"path": f"{PRIVATE}/libmpi.so.12", "sha256": ""}], "is another file than"),
    ],
    ids=["the image's own", "other bytes", "both", "unreadable"],
)
def test_one_rank_on_another_file_fails(injection: Injection, second: list[object], told: str) -> None:
    both = reports(report(0, 2, mpi=[loaded()]), report(1, 2, mpi=second))
    finding = judge_host_mpi([both], injection)
    assert finding.status == "FAIL"
    assert told in finding.observed


def test_nothing_loaded_proves_nothing(injection: Injection) -> None:
    assert judge_host_mpi([reports(report(0, 2, mpi=[]))], injection).status == "FAIL"
    silent = reports(report(0, 2, libraries=[f"{PRIVATE}/libmpi.so.12"]))
    assert judge_host_mpi([silent], injection).status == "FAIL"


@pytest.mark.parametrize("junk", [None, 7, "text", ["text"], [{}], {"path": 1}])
def test_a_report_is_text_from_a_stranger(injection: Injection, junk: object) -> None:
    assert judge_host_mpi([reports(report(0, 2, mpi=junk))], injection).status == "FAIL"
