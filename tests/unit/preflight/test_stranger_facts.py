"""Facts of images that envbuild did not build: what the files show, and that all else is unknown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.main import main
from envbuild.image.file import ImageFile
from envbuild.preflight.image_facts import image_facts, kept_facts
from envbuild.rules.facts import Fact
from envbuild.store.store import Store
from envbuild.system import files
from tests.support.elves import Elf
from tests.support.foreign_images import Tree, distribution, opened

LIB = "/usr/lib/x86_64-linux-gnu"
LIBC = Elf(soname="libc.so.6", versions_defined=("libc.so.6", "GLIBC_2.17", "GLIBC_2.35", "GLIBC_PRIVATE"))
OPENMPI = Elf(soname="libmpi.so.40", defined=("MPI_Init", "ompi_mpi_comm_world"), needed=("libc.so.6",))
CUDART = Elf(soname="libcudart.so.12", defined=("cudaMalloc",), needed=("libc.so.6",))
VENDOR: Tree = {
    f"{LIB}/libc.so.6": LIBC.bytes(),
    f"{LIB}/libmpi.so.40": OPENMPI.bytes(),
    f"{LIB}/libcudart.so.12.6.77": CUDART.bytes(),
    f"{LIB}/libcudart.so.12": ("libcudart.so.12.6.77",),
    **distribution("torch", "2.6.0+cu126"),
    **distribution("numpy", "1.26.4"),
}
DOCKER = "/.singularity.d/env/10-docker2singularity.sh"


def image_of(directory: Path, *trees: Tree) -> Path:
    directory.mkdir()
    with opened(directory, *trees):
        return Path(shutil.copy(directory / "image.sqfs", directory.with_suffix(".sqfs")))


def facts(tmp_path: Path, *trees: Tree) -> dict[str, Fact]:
    with ImageFile.open(image_of(tmp_path / "vendor", *trees)) as image:
        return image_facts(image, Store(tmp_path / "store"))


def values(found: dict[str, Fact], *names: str) -> list[Any]:
    return [found[name].value if name in found else None for name in names]


def test_files_show_packages_cuda_mpi_and_glibc(tmp_path: Path) -> None:
    found = facts(tmp_path, VENDOR)
    named = values(found, "architecture.image", "glibc.image", "python.version")
    assert named == ["amd64", "2.35", "3.11"]
    assert values(found, "packages", "packages.torch") == [("numpy", "torch"), "2.6.0+cu126"]
    assert values(found, "cuda.toolkit", "cuda.majors") == ["12.6", ("12",)]
    assert values(found, "mpi.abis", "mpi.family") == [("openmpi-40",), "openmpi"]


def test_what_files_do_not_show_is_unknown(tmp_path: Path) -> None:
    mpich = Elf(soname="libmpi.so.12", defined=("MPI_Init", "MPI_UNWEIGHTED"), needed=("libc.so.6",))
    found = facts(tmp_path, {f"{LIB}/libc.so.6": LIBC.bytes(), f"{LIB}/libmpi.so.12": mpich.bytes()})
    # Intel MPI has this ABI, too.
    assert values(found, "mpi.abis", "mpi.family") == [("mpich",), None]
    for name in ("mpi.version", "cuda.toolkit", "cuda.majors", "asked.accelerator", "python.version"):
        assert name not in found
    # Nor is a variable that only the start sets.
    assert not [name for name in found if name.startswith("environment.")]


def test_compilers_with_another_c_library_do_not_count(tmp_path: Path) -> None:
    old = Elf(soname="libc.so.6", versions_defined=("libc.so.6", "GLIBC_2.12"))
    sysroot = "/opt/conda/x86_64-conda-linux-gnu/sysroot/lib64"
    tree = {f"{LIB}/libc.so.6": LIBC.bytes(), f"{sysroot}/libc.so.6": old.bytes()}
    assert values(facts(tmp_path, tree), "glibc.image") == ["2.35"]
    (tmp_path / "b").mkdir()
    two = {f"{LIB}/libc.so.6": LIBC.bytes(), "/lib64/libc.so.6": old.bytes()}
    assert values(facts(tmp_path / "b", two), "glibc.image") == [None]


@pytest.mark.parametrize(
    ("line", "abis"),
    [
        ('export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-"/opt/mpi:/opt/other"}"', ("openmpi-40",)),
        ("export LD_LIBRARY_PATH=$(find /opt -name lib)", None),
    ],
)
def test_what_programs_load_is_known_if_the_search_path_is(
    tmp_path: Path, line: str, abis: tuple[str, ...] | None
) -> None:
    script = f'{line}\nexport NVIDIA_REQUIRE_CUDA="${{NVIDIA_REQUIRE_CUDA:-"cuda>=12.6"}}"\n'
    tree: Tree = {f"{LIB}/libc.so.6": LIBC.bytes(), "/opt/mpi/libmpi.so.40": OPENMPI.bytes(), DOCKER: script}
    assert values(facts(tmp_path, tree), "mpi.abis", "cuda.requires") == [abis, ("cuda>=12.6",)]


def test_an_image_without_programs_has_no_facts(tmp_path: Path) -> None:
    assert facts(tmp_path, {"/etc/motd": "hello"}) == {}


def test_facts_are_kept_for_the_file_that_was_read(tmp_path: Path) -> None:
    path, store = image_of(tmp_path / "vendor", VENDOR), Store(tmp_path / "store")
    with ImageFile.open(path) as image:
        found = image_facts(image, store)
        assert kept_facts(image, store) == found
    # The same tables, and perhaps other data.
    with ImageFile.open(Path(shutil.copy(path, tmp_path / "copy.sqfs"))) as image:
        assert kept_facts(image, store) is None


SITE = """\
name: old
architecture: amd64
gpus: {vendor: nvidia, architectures: [sm_90], driver: "470.57.02"}
"""


def test_explain_judges_it_at_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(files, "_SYSTEM_CONFIGURATION", tmp_path / "etc")
    image = image_of(tmp_path / "vendor", VENDOR)
    (tmp_path / "old.yaml").write_text(SITE)
    words = ["explain", str(image), "--site", str(tmp_path / "old.yaml"), "--store", str(tmp_path / "store")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code == 4
    rules = {rule["id"]: rule for rule in json.loads(capsys.readouterr().out)["rules"]}
    refused = [name for name, rule in rules.items() if rule["verdict"] == "reject"]
    assert refused == ["CUDA.driver-floor"]
    # Its release of MPI is not read.
    assert rules["PMI.intersection"]["verdict"] == "unknown"
