"""The proof that ranks ran on the host's MPI, and how they are started for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.check.hosted import FROM_HOST, image_side, judge_from_host
from envbuild.check.launchers.hostmpiexec import HostMpiexec
from envbuild.check.preflight.examine import Preflight
from envbuild.image.environment import default_environment
from envbuild.rules.facts import facts_from
from envbuild.site.inject import PRIVATE, Injection
from tests.support.trees import manifest
from tests.unit.check.stage import report, reports

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
    finding = judge_from_host([both], injection)
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
    finding = judge_from_host([both], injection)
    assert finding.status == "FAIL"
    assert told in finding.observed


def test_nothing_loaded_proves_nothing(injection: Injection) -> None:
    assert judge_from_host([reports(report(0, 2, mpi=[]))], injection).status == "FAIL"
    old = reports(report(0, 2, libraries=[f"{PRIVATE}/libmpi.so.12"]))
    finding = judge_from_host([old], injection)
    assert (finding.status, finding.hint) == ("FAIL", "build the image again")


@pytest.mark.parametrize("junk", [None, 7, "text", ["text"], [{}], {"path": 1}])
def test_a_report_is_text_from_a_stranger(injection: Injection, junk: object) -> None:
    assert judge_from_host([reports(report(0, 2, mpi=junk))], injection).status == "FAIL"


@pytest.mark.parametrize(
    ("needed", "own", "abis"),
    [
        (("openmpi-40",), ("mpich", "openmpi-40"), ("openmpi-40",)),
        (("mpich", "standard"), None, ("mpich", "standard")),
        # Nothing needs one: programs that open it are taken for the image's own MPI's.
        (None, ("mpich", "standard"), ("mpich",)),
        (None, None, ()),
    ],
)
def test_the_abis_that_an_image_needs_of_a_host(
    needed: tuple[str, ...] | None, own: tuple[str, ...] | None, abis: tuple[str, ...]
) -> None:
    provides = {"libz.so.1": ("ZLIB_1.2.9",)}
    facts = facts_from({"mpi.needed_abis": needed, "mpi.abis": own}, "image")
    found = Preflight(problems=(), excused=(), objects=1, processes=1, facts=facts, provides=provides)
    image = manifest(mpi="some", mpi_family="mpich", environment=default_environment())
    side = image_side(image, found)
    assert (side.abis, side.provides) == (abis, provides)
    assert side.library_path == "/opt/fabric/lib:/opt/mpi/lib:/.singularity.d/libs"


@pytest.mark.parametrize(
    ("family", "root", "words"),
    [
        ("intel-mpi", True, "/h/mpiexec -n 2 apptainer exec i.sif job"),
        ("mpich", False, "/h/mpiexec -n 2 apptainer exec i.sif job"),
        ("openmpi", False, "/h/mpiexec --map-by :OVERSUBSCRIBE -n 2 apptainer exec i.sif job"),
        (
            "openmpi",
            True,
            "/h/mpiexec --allow-run-as-root --map-by :OVERSUBSCRIBE -n 2 apptainer exec i.sif job",
        ),
    ],
)
def test_the_host_s_mpiexec_starts_one_container_a_rank(family: str, root: bool, words: str) -> None:
    launcher = HostMpiexec(program="/h/mpiexec", family=family, root=root)
    assert launcher.command(["apptainer", "exec", "i.sif"], ["job"], 2) == words.split()


def test_ranks_apart_do_not_read_each_other_s_memory() -> None:
    assert HostMpiexec(program="m", family="mpich").environment()["MPIR_CVAR_CH4_CMA_ENABLE"] == "0"
    assert HostMpiexec(program="m", family="openmpi").environment()["OMPI_MCA_smsc"] == "^cma"
    assert HostMpiexec(program="m", family="intel-mpi").environment() == {}
