"""`check` with a site: the rules on what fits together, and the host's MPI in the place of the image's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.check.preflight.facts import newest
from envbuild.check.preflight.run import preflight
from envbuild.cli.main import main
from envbuild.store.store import Store
from tests.support.elves import Elf
from tests.support.small_images import BASE, Layer, small_image

MPICH = ("MPI_Init", "MPI_Send", "MPI_UNWEIGHTED")
OPENMPI = ("MPI_Init", "MPI_Send", "ompi_mpi_comm_world")
USER = Elf(needed=("libmpi.so.12", "libc.so.6"), undefined=("MPI_Init", "MPI_Send"), interpreter="/lib/ld.so")


def image(tmp_path: Path, user: Elf = USER) -> Path:
    own = Elf(soname="libmpi.so.12", defined=MPICH)
    layer: Layer = {"/opt/mpi/lib/libmpi.so.12": own, "/opt/solve": user}
    return small_image(tmp_path, BASE, layer, mpi="mpich", mpi_family="mpich", recipes={"mpich": "5.0.2"})


def site(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "here.yaml"
    path.write_text(f"name: here\n{text}")
    return path


def host_library(tmp_path: Path, elf: Elf) -> Path:
    path = tmp_path / "host" / "libmpi.so.12"
    path.parent.mkdir()
    path.write_bytes(elf.bytes())
    return path


def checked(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["check", *map(str, words)])
    return int(ended.value.code or 0)


def lines(text: str, status: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line.startswith(status)]


def test_the_files_tell_facts(tmp_path: Path) -> None:
    found = preflight(image(tmp_path), Store(tmp_path / "store"), names=["libc.so.6", "libgone.so"])[1]
    assert found.facts == {
        "mpi.needed_sonames": ("libmpi.so.12",),
        "mpi.needed_abis": ("mpich",),
        "mpi.rpath_files": (),
        "nccl.copies": (),
        "cudnn.copies": (),
        "glibc.needed": "2.34",
    }
    assert found.provides == {"libc.so.6": ("libc.so.6", "GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.36")}


def test_two_nccls_in_one_process_are_two(tmp_path: Path) -> None:
    layer: Layer = {
        "/usr/lib/libnccl.so.2": Elf(soname="libnccl.so.2"),
        "/opt/a/libnccl.so.1": Elf(soname="libnccl.so.1"),
        "/opt/app": Elf(needed=("libnccl.so.2", "libnccl.so.1"), runpath="/opt/a", interpreter="/lib/ld.so"),
        "/opt/other": Elf(needed=("libnccl.so.2",), interpreter="/lib/ld.so"),
    }
    found = preflight(small_image(tmp_path, BASE, layer), Store(tmp_path / "store"))[1]
    assert found.facts["nccl.copies"] == ("/opt/a/libnccl.so.1", "/usr/lib/libnccl.so.2")


@pytest.mark.parametrize(
    ("versions", "expected"),
    [(["GLIBC_2.4", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.30"], "2.34"), (["XGLIBC_2.4"], None)],
)
def test_the_newest_version_is_told_by_numbers(versions: list[str], expected: str | None) -> None:
    assert newest(versions, "GLIBC") == expected


def test_a_site_of_another_architecture_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = site(tmp_path, "architecture: arm64\n")
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--site", there) == 4
    said = capsys.readouterr().err
    assert lines(said, "FAIL") == ["ARCH.same"]
    assert "architecture.host = arm64 (site:here)" in said
    assert "failed: 1 problem;" in said


def test_what_the_rules_cannot_tell_is_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = site(tmp_path, "fabric: {name: slingshot-11, provider: cxi}\n")
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--site", there, "--json") == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    unknown = [verdict["rule"] for verdict in document["verdicts"] if verdict["outcome"] == "unknown"]
    # The image's own MPI on Slingshot is what people should know of.
    assert lines(said.err, "SKIP") == ["FABRIC.image-mpi-on-slingshot"]
    assert f"{len(unknown)} rules lack facts to tell" in said.err
    assert document["counts"]["SKIP"] == len(unknown) > 1


def test_the_hosts_mpi_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # It is of the image's family, and lacks what a program calls.
    library = host_library(tmp_path, Elf(soname="libmpi.so.12", defined=("MPI_Init", "MPI_UNWEIGHTED")))
    there = site(
        tmp_path, f"mpi: {{implementation: intel-mpi, version: '2021.18', libraries: [{library}]}}\n"
    )
    words = (image(tmp_path), "--store", tmp_path / "store", "--site", there)
    assert checked(*words) == 0
    assert checked(*words, "--mpi", "host") == 4
    said = capsys.readouterr().err
    assert lines(said, "FAIL") == ["P1.symbols"]
    assert "MPI_Send of mpi" in said


def test_a_host_of_another_family_is_refused_by_its_symbols(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = host_library(tmp_path, Elf(soname="libmpi.so.12", defined=OPENMPI))
    there = site(tmp_path, f"mpi: {{implementation: openmpi, version: '1.10.7', libraries: [{library}]}}\n")
    words = (image(tmp_path), "--store", tmp_path / "store", "--site", there, "--mpi", "host")
    assert checked(*words) == 4
    assert "MPI.openmpi-1.10-is-not-mpich" in lines(capsys.readouterr().err, "FAIL")


def test_a_program_tied_to_its_mpi_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tied = Elf(needed=USER.needed, undefined=USER.undefined, rpath="/opt/mpi/lib", interpreter="/lib/ld.so")
    library = host_library(tmp_path, Elf(soname="libmpi.so.12", defined=MPICH))
    there = site(tmp_path, f"mpi: {{implementation: mpich, version: '4.2', libraries: [{library}]}}\n")
    words = (image(tmp_path, tied), "--store", tmp_path / "store", "--site", there, "--mpi", "host")
    assert checked(*words) == 4
    assert lines(capsys.readouterr().err, "FAIL") == ["P1.rpath", "MPI.rpath-defeats-swap"]


def test_the_hosts_mpi_wants_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--mpi", "host") == 2
    assert "no site says what it is" in capsys.readouterr().err
