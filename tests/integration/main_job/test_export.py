"""The main job's image in other forms: a second runtime runs it, and a definition file tells it."""

from __future__ import annotations

import filecmp
import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import Desk
from tests.support.users import user_name

JUDGE = ["/usr/bin/python3", "-I", "/.envbuild/judge.py", "test"]
MINI = """\
name: mini
version: "1"
base: debian-12
mpi: mpich
packages: {system: [less]}
environment: {GREETING: "it's here"}
files: [{source: hello.txt, target: /srv/hello.txt}]
"""

LOOK = """\
dpkg-query -W -f '${Package} ${Version}\\n' | sort
ls /opt/mpi/bin
cat /srv/hello.txt
echo "$GREETING"
python -c 'import importlib.metadata as m; print(sorted((d.name, d.version) for d in m.distributions()))'
mpiexec -n 2 python -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))'
"""


@pytest.fixture(scope="module")
def whole(desk: Desk, small_image: Path) -> Path:
    desk.envbuild("export", small_image, "--format", "squashfs", "-o", "whole.sqfs")
    return desk.place / "whole.sqfs"


def charliecloud(desk: Desk, whole: Path, *words: str, code: int | None = 0) -> str:
    # ch-run asks for the name of its user, which not every service has.
    argv: list[str | Path] = ["ch-run", "--env-no-expand", "--set-env", whole, "--", *words]
    return desk.run(argv, code=code, env={"USER": user_name()}).stdout


def test_charliecloud_runs_the_mini_jobs(desk: Desk, whole: Path) -> None:
    said = charliecloud(desk, whole, *JUDGE).splitlines()
    assert said[-1].startswith("passed: ")
    assert not [line for line in said if line.startswith("FAIL")]
    ranks = 'expected="ranks=0,1 size=2 processes=2" observed="ranks=0,1 size=2 processes=2"'
    assert any(line.startswith(f"PASS D0/D1.mpi {ranks}") for line in said)


def test_charliecloud_gets_the_image_s_variables(desk: Desk, whole: Path) -> None:
    said = charliecloud(desk, whole, "env").splitlines()
    assert "LD_LIBRARY_PATH=/opt/fabric/lib:/opt/mpi/lib" in said
    assert "PYTHONPATH=" in said
    assert charliecloud(desk, whole, "sh", "-c", "command -v python; command -v mpiexec").split() == [
        "/opt/env/bin/python",
        "/opt/mpi/bin/mpiexec",
    ]


def test_build_writes_further_forms(desk: Desk, small_image: Path, whole: Path) -> None:
    said = desk.envbuild(
        *("build", "on-mpich.yaml", "--json", "-o", "again.sif"),
        *("-o", "squashfs:again.sqfs", "-o", "sif-flat:again-flat.sif", "-o", "def:again.def"),
    )
    told = json.loads(said.stdout)
    assert told["image"] == "again.sif"
    assert [one["format"] for one in told["outputs"]] == ["squashfs", "sif-flat", "def"]
    assert filecmp.cmp(desk.place / "again.sif", small_image, shallow=False)
    assert filecmp.cmp(desk.place / "again.sqfs", whole, shallow=False)
    desk.envbuild("export", small_image, "--format", "def", "-o", "exported.def")
    assert filecmp.cmp(desk.place / "again.def", desk.place / "exported.def", shallow=False)
    # The image that `--flat` builds, whichever way it came about.
    desk.envbuild("build", "on-mpich.yaml", "--flat", "-o", "built-flat.sif")
    digests = {
        json.loads(desk.envbuild("inspect", name, "--json").stdout)["digest"]
        for name in ("again-flat.sif", "built-flat.sif")
    }
    assert digests == {told["outputs"][1]["identity"]}
    assert filecmp.cmp(desk.place / "again-flat.sif", desk.place / "built-flat.sif", shallow=False)


@pytest.mark.slow  # what it says: tests/golden/export, tests/unit/image/test_definition.py
def test_a_definition_file_brings_the_same_packages(desk: Desk, shared: Path) -> None:
    desk.write("hello.txt", "hello\n")
    spec = desk.write("mini.yaml", MINI)
    desk.envbuild("build", spec, "-o", "mini.sif", "-o", "def:mini.def")
    desk.envbuild("fetch", spec, "--to", "mini-files")
    text = (desk.place / "mini.def").read_text()
    assert text.startswith("Bootstrap: docker\nFrom: debian:bookworm-slim\n")
    # A registry may be out of reach of those who test: Debian's own tool makes what `From` names.
    root = shared / "bookworm"
    subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", "bookworm", f"{root}.tar"], check=True)
    root.mkdir()
    subprocess.run(["tar", "-C", root, "-xf", f"{root}.tar", "--exclude=./dev/*"], check=True)
    local = desk.write("local.def", f"Bootstrap: localimage\nFrom: {root}\n" + text.split("\n", 2)[2])
    desk.apptainer(
        *("build", "--fakeroot", "--sandbox", "--bind", f"{desk.place}/mini-files/wheels:/mnt"),
        *("--build-arg", "pip_options=--no-index --find-links=/mnt", "told", local),
    )
    ours, theirs = (
        desk.apptainer("exec", "--cleanenv", name, "sh", "-c", LOOK).stdout for name in ("mini.sif", "told")
    )
    assert ours.splitlines()[-2:] == ["2", "2"]
    assert theirs == ours
