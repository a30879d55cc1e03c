"""`check` with a site: the rules on what fits together, and the host's MPI in the place of the image's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.image.sif import LOCK
from envbuild.preflight.report import PreflightReport, run_preflight, simulate
from envbuild.rules.facts import Value
from envbuild.store.store import Store
from tests.support.elves import Elf
from tests.support.images import read_data, read_sif, scan_image
from tests.support.looking import preflight
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


def mpi_facts(found: PreflightReport) -> tuple[Value, ...]:
    return tuple(found.facts[f"mpi.{name}"].value for name in ("abis", "needed_abis", "needed_sonames"))


def lines(text: str, status: str) -> list[str]:
    """Return the ids of the checks with a status; what passed is shown with ``-v``."""
    heading = r"^     ([\w.-]+\.[\w.-]+)(?: of .*)?$" if status == "FAIL" else rf"^     {status} ([\w.-]+)"
    return re.findall(heading, text, re.MULTILINE)


def test_the_files_tell_facts(tmp_path: Path) -> None:
    scan = scan_image(image(tmp_path), Store(tmp_path / "store"))
    found = run_preflight(scan)
    assert {path: fact.value for path, fact in found.facts.items() if fact.source == "image"} == {
        "libc.family": "glibc",
        "packages": (),
        "cuda.driver_library": "host",
        "cuda.forward_compat": False,
        "environment.LD_LIBRARY_PATH": "/opt/fabric/lib:/opt/mpi/lib",
        "environment.NVIDIA_DISABLE_REQUIRE": "",
        "environment.PYTHONNOUSERSITE": "1",
        "environment.GREETING": "it's $HOME `here`",
        "environment.LC_ALL": "C.UTF-8",
        "environment.OMPI_MCA_btl": "",
        "environment.OMPI_MCA_mtl": "",
        "environment.OMPI_MCA_pml": "",
        "environment.PATH": "/opt/env/bin:/opt/mpi/bin",
        "environment.VIRTUAL_ENV": "/opt/env",
        "mpi.abis": ("mpich",),
        "mpi.needed_abis": ("mpich",),
        "mpi.needed_sonames": ("libmpi.so.12",),
        "mpi.rpath_files": (),
        "mpi.gtl": False,
        "libstdcxx.image": "3.4.29",
        "cuda.requires": (),
    }
    versions = ("libc.so.6", "GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.36")
    assert simulate(scan).libraries()["libc.so.6"] == versions


def test_an_image_is_explained_at_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = image(tmp_path)
    here = site(tmp_path, "architecture: arm64\nscheduler: {name: slurm, mpi_types: [pmi2]}\n")
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(path), "--site", str(here), "--store", str(tmp_path / "store"), "--json"])
    document = json.loads(capsys.readouterr().out)
    verdicts = {rule["id"]: rule["verdict"] for rule in document["rules"]}
    assert (ended.value.code, document["verdict"], document["sites"]) == (4, "reject", ["here"])
    assert (verdicts["ARCH.same"], verdicts["PMI.intersection"]) == ("reject", "ok")
    origins = {fact["path"]: fact["origin"] for rule in document["rules"] for fact in rule["facts"]}
    assert (origins["mpi.version"], origins["architecture.host"]) == ("lock", "site:here")


def test_what_the_files_tell_a_host_that_lends_its_mpi(tmp_path: Path) -> None:
    ask = Elf(needed=("libmpi.so.12",), undefined=("MPI_Init",))
    layer: Layer = {
        "/opt/mpi/lib/libmpi.so.12": Elf(soname="libmpi.so.12", defined=MPICH),
        "/opt/mpi/lib/libmpi_abi.so.1": Elf(
            soname="libmpi_abi.so.1", defined=("MPI_Init", "MPI_Abi_get_version")
        ),
        "/opt/mpi/lib/libextra.so.1": Elf(versions_defined=("EXTRA_1.0", "EXTRA_1.1")),
        # The extension for an MPI that is not there is never loaded.
        "/opt/env/MPI.openmpi.so": Elf(needed=("libmpi.so.40",), undefined=("MPI_Init",)),
        "/opt/env/MPI.mpich.so": ask,
        "/opt/env/hard.so": replace(ask, rpath="$ORIGIN/../mpi/lib"),
        "/opt/env/soft.so": replace(ask, runpath="$ORIGIN/../mpi/lib"),
        "/opt/env/elsewhere.so": replace(ask, rpath="/usr/lib/none"),
    }
    scan = scan_image(small_image(tmp_path, BASE, layer), Store(tmp_path / "store"))
    found = run_preflight(scan)
    assert mpi_facts(found) == (("mpich", "standard"), ("mpich",), ("libmpi.so.12",))
    assert found.facts["mpi.rpath_files"].value == ("/opt/env/hard.so",)
    assert simulate(scan).libraries()["libextra.so.1"] == ("EXTRA_1.0", "EXTRA_1.1")


def test_an_mpi_s_own_tools_ask_nothing_of_a_host(tmp_path: Path) -> None:
    layer: Layer = {
        "/opt/mpi/lib/libmpi.so.12": Elf(soname="libmpi.so.12", defined=MPICH),
        "/opt/mpi/lib/libmpi_abi.so.1": Elf(
            soname="libmpi_abi.so.1", defined=("MPI_Init", "MPI_Abi_get_version")
        ),
        "/opt/mpi/lib/libmpifort.so.12": Elf(soname="libmpifort.so.12", needed=("libmpi.so.12",)),
        "/opt/mpi/bin/mpichversion": USER,
        "/opt/env/MPI.so": Elf(needed=("libmpi_abi.so.1",), undefined=("MPI_Init",)),
    }
    found = preflight(small_image(tmp_path, BASE, layer), Store(tmp_path / "store"))
    assert mpi_facts(found)[1:] == (("standard",), ("libmpi_abi.so.1",))
    # A program that has the Fortran bindings alone needs the MPI behind them.
    layer = {**layer, "/opt/solve": Elf(needed=("libmpifort.so.12",), interpreter="/lib/ld.so")}
    found = preflight(small_image(tmp_path, BASE, layer, name="fortran.sif"), Store(tmp_path / "store"))
    assert mpi_facts(found)[1] == ("mpich", "standard")


def test_one_name_and_another_abi_is_told_by_symbols(tmp_path: Path) -> None:
    own = Elf(soname="libmpi.so.12", defined=OPENMPI)
    layer: Layer = {"/opt/mpi/lib/libmpi.so.12": own, "/opt/solve": USER}
    found = preflight(small_image(tmp_path, BASE, layer), Store(tmp_path / "store"))
    assert mpi_facts(found)[:2] == (("openmpi-12",), ("openmpi-12",))


def test_the_libraries_of_accelerators_are_facts(tmp_path: Path) -> None:
    place = "/opt/env/lib/python3.11/site-packages"
    metadata = b"Name: nvidia-cudnn-cu13\nVersion: 9.20.0.48\n"
    layer: Layer = {
        f"{place}/nvidia/cudnn/lib/libcudnn.so.9": Elf(soname="libcudnn.so.9"),
        f"{place}/nvidia_cudnn_cu13-9.20.0.48.dist-info/METADATA": metadata,
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9": ("libcudnn.so.9.1.0",),
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0": Elf(soname="libcudnn.so.9"),
        "/opt/rocm/libamdhip64.so.6": Elf(soname="libamdhip64.so.6"),
        "/opt/gpu-aware": Elf(
            needed=("libcudnn.so.9", "libmpi_gtl_hsa.so.0"),
            runpath=f"{place}/nvidia/cudnn/lib",
            interpreter="/lib/ld.so",
        ),
    }
    store = Store(tmp_path / "store")
    facts = preflight(small_image(tmp_path, BASE, layer), store).facts
    known = {path: facts[path].value for path in ("cudnn.loaded", "rocm.toolkit", "mpi.gtl")}
    assert known == {"cudnn.loaded": "9.20.0.48", "rocm.toolkit": "6", "mpi.gtl": True}
    # A program that loads the older one of the system.
    layer = {**layer, "/opt/other": Elf(needed=("libcudnn.so.9",), interpreter="/lib/ld.so")}
    facts = preflight(small_image(tmp_path, BASE, layer, name="more.sif"), store).facts
    assert facts["cudnn.loaded"].value == "9.1.0"


def test_a_site_of_another_architecture_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = site(tmp_path, "architecture: arm64\n")
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--site", there) == 4
    said = capsys.readouterr().err
    assert lines(said, "FAIL") == ["ARCH.same"]
    assert "architecture.host = arm64 (site:here)" in said
    assert "failed: 1 problem;" in said


TWO = """\
scheduler: {name: slurm, mpi_types: [pmi2, pmix]}
partitions:
  arm: {architecture: arm64}
  x86: {architecture: amd64}
"""


def test_the_partitions_are_named_where_an_image_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = site(tmp_path, TWO)
    words = (image(tmp_path), "--store", tmp_path / "store", "--site")
    assert checked(*words, there, "-v") == 0
    said = capsys.readouterr().err
    assert "SKIP ARCH.same" in said
    reason = "the image is for amd64, and the host is arm64"
    assert f"here/arm: cannot run: ARCH.same: {reason}\nhere/x86: may run\n" in said
    # A rule with the same result in both is said once, others for each.
    assert lines(said, "PASS").count("PMI.intersection") == 1
    assert lines(said, "PASS").count("ARCH.same") == 1
    assert checked(*words, there, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["partitions"] == [
        {"name": "here/arm", "reasons": [f"ARCH.same: {reason}"], "fits": False},
        {"name": "here/x86", "reasons": [], "fits": True},
    ]
    # A named one alone decides.
    assert checked(*words, f"{there}/arm") == 4
    assert lines(capsys.readouterr().err, "FAIL") == ["ARCH.same"]
    assert checked(*words, f"{there}/x86") == 0


def test_an_image_that_fits_no_partition_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = site(tmp_path, TWO.replace("x86: {architecture: amd64}", "x86: {scheduler: {mpi_types: [pmix]}}"))
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--site", there) == 4
    said = capsys.readouterr().err
    assert sorted(lines(said, "FAIL")) == ["ARCH.same", "PMI.intersection"]
    assert "here/arm: cannot run: ARCH.same: " in said
    assert "here/x86: cannot run: PMI.intersection: " in said


def test_the_hosts_libraries_are_those_of_one_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = site(tmp_path, TWO)
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--site", there, "--mpi", "host") == 2
    assert "error: the site `here` has several partitions: arm, x86" in capsys.readouterr().err


def test_what_the_rules_cannot_tell_is_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = site(tmp_path, "fabric: {name: slingshot-11, provider: cxi}\n")
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--site", there, "--json") == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    unknown = [
        finding["id"]
        for finding in document["findings"]
        if finding["status"] == "SKIP" and "facts" in finding
    ]
    # The image's own MPI on Slingshot, and that nothing is known to forbid TCP: both are told.
    assert "skipped: FABRIC.slingshot-needs-cxi, FABRIC.image-mpi-on-slingshot;" in said.err
    assert "unknown: fabric.ofi_provider" in said.err
    assert "messages take a slow path without an error" in said.err
    assert f"{len(unknown)} rules lack facts" in said.err
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
    assert lines(said, "FAIL") == ["loader.symbols"]
    assert "MPI_Send of mpi" in said


def test_what_belongs_to_the_images_own_mpi_is_idle_on_the_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Only MPICH opens its provider, which takes more of MPICH than another MPI of its ABI has.
    part = Elf(needed=("libmpi.so.12",), undefined=("MPIR_Err_create",))
    own = Elf(soname="libmpi.so.12", defined=(*MPICH, "MPIR_Err_create"))
    layer: Layer = {
        "/opt/mpi/lib/libmpi.so.12": own,
        "/opt/mpi/lib/mpich/provider.so": part,
        "/opt/mpi/lib/libmpifort.so.12": replace(part, soname="libmpifort.so.12"),
        "/opt/solve": USER,
    }
    layers = {**layer, "/opt/env/plugin.so": part}
    library = host_library(tmp_path, Elf(soname="libmpi.so.12", defined=MPICH))
    there = site(tmp_path, f"mpi: {{implementation: mpich, version: '4.2', libraries: [{library}]}}\n")
    manifest: dict[str, Any] = {"mpi": "mpich", "mpi_family": "mpich", "recipes": {"mpich": "4.1"}}
    words = ("--store", tmp_path / "store", "--site", there, "--mpi", "host")
    assert checked(small_image(tmp_path, BASE, layer, **manifest), *words) == 0
    capsys.readouterr()
    assert checked(small_image(tmp_path, BASE, layers, name="more.sif", **manifest), *words) == 4
    said = capsys.readouterr().err
    assert lines(said, "FAIL") == ["loader.symbols"]
    assert "/opt/env/plugin.so gets" in said


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
    assert lines(capsys.readouterr().err, "FAIL") == ["MPI.rpath-defeats-swap"]


def test_the_hosts_mpi_wants_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(image(tmp_path), "--store", tmp_path / "store", "--mpi", "host") == 2
    assert "no site file describes the host's MPI" in capsys.readouterr().err


def flipped(path: Path, offset: int) -> None:
    """Turn one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_byte_that_no_loader_reads_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, store = image(tmp_path), tmp_path / "store"
    assert checked(path, "--store", store) == 0
    root = read_sif(path).root
    assert root is not None
    # What pads a file system to its last block.
    flipped(path, root.end - 1)
    capsys.readouterr()
    for _ in range(2):
        assert checked(path, "--store", store, "--json") == 4
        said = capsys.readouterr()
        (finding,) = (one for one in json.loads(said.out)["findings"] if one["status"] == "FAIL")
        assert (finding["id"], finding["observed"]) == ("image.digest", "the tables of its file system")
        assert "failed: 1 problem;" in said.err


def test_a_flipped_byte_of_the_lock_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = image(tmp_path)
    lock = read_data(path, LOCK)
    flipped(path, path.read_bytes().index(lock) + lock.index(b"2.36"))
    assert checked(path, "--store", tmp_path / "store") == 4
    said = capsys.readouterr().err
    assert lines(said, "FAIL") == ["image.digest"]
    assert "expected: all parts as built\n       observed: the lock\n" in said


def test_a_lock_that_no_longer_can_be_read_is_damage_of_the_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = image(tmp_path)
    lock = read_data(path, LOCK)
    flipped(path, path.read_bytes().index(lock) + lock.index(b"glibc"))
    assert checked(path, "--store", tmp_path / "store") == 4
    said = capsys.readouterr().err
    assert "`small.sif` was changed or damaged (the lock), and cannot be read: " in said
    assert "remove it" not in said


@pytest.mark.parametrize("key", ["libraries", "companions"])
def test_whatever_the_host_lacks_of_what_its_site_names_fails_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    library = host_library(tmp_path, Elf(soname="libmpi.so.12", defined=MPICH))
    paths = {"libraries": [str(library)], "companions": []}
    paths[key].append("/nowhere/libmpi.so.12")
    there = site(tmp_path, f"mpi: {json.dumps({'implementation': 'mpich', 'version': '5.0.2', **paths})}\n")
    words = (image(tmp_path), "--store", tmp_path / "store", "--site", there, "--mpi", "host")
    assert checked(*words) == 4
    assert lines(capsys.readouterr().err, "FAIL") == ["HOST.binds-exist"]
