"""What `launch`, `exec` and `shell` start of an image of another tool that was extended."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.image.extension import NOTE_PATH, Extension, ExtensionNote, Requests
from envbuild.jobs.launchers import on_one_host
from envbuild.launch import gpus
from envbuild.system import apptainer as runtime
from envbuild.system.apptainer import Apptainer
from envbuild.workflows import launch
from envbuild.workflows.hosting import HostLibraries
from envbuild.workflows.settings import Settings
from tests.support.foreign_images import Tree, opened

EXTENSION = Extension(
    image="vendor.sif",
    digest=f"sha256:{'0' * 64}",
    envbuild="0.1.0",
    python="/usr/bin/python3.11",
    python_version="3.11",
    glibc="2.36",
    requests=Requests(python=("demo",)),
)
EXTENDED: Tree = {NOTE_PATH: ExtensionNote(extensions=(EXTENSION,)).to_json()}
OPENMPI: Tree = {"/opt/ompi/lib/libmpi.so.40": "", "/opt/ompi/bin/mpiexec": "#!/bin/sh\n"}
MPICH: Tree = {"/usr/lib/libmpi.so.12": "", "/usr/bin/mpiexec": "#!/bin/sh\n"}
INTEL: Tree = {"/opt/intel/lib/libmpi.so.12": "", "/opt/intel/bin/impi_info": "#!/bin/sh\n"}


@pytest.fixture
def image_of(tmp_path: Path) -> Callable[..., Path]:
    def make(*trees: Tree) -> Path:
        (tmp_path / "work").mkdir()
        with opened(tmp_path / "work", {"/etc/motd": "hello"}, *trees):
            return Path(shutil.copy(tmp_path / "work/image.sqfs", tmp_path / "mine.sqfs"))

    return make


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    for name in ("SLURM_JOB_ID", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PBS_JOBID", "HYDRA_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpus, "DEVICES", {})
    monkeypatch.setattr(runtime, "find", lambda _: Apptainer(program=Path("apptainer"), version="1.4.5"))
    monkeypatch.setattr(launch, "site_of", lambda _: None)
    monkeypatch.setattr(launch, "site_here", lambda _: None)
    return Settings.of(store=tmp_path / "store", emit=lambda _: None)


def line(image: Path, settings: Settings, *, ranks: int | None = 2, **host: bool) -> list[str]:
    return launch.launch_line(image, ["job"], ranks=ranks, from_host=HostLibraries(**host), settings=settings)


def variables(words: list[str]) -> dict[str, str]:
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--env")


def test_ranks_start_by_the_images_own_mpiexec(image_of: Callable[..., Path], settings: Settings) -> None:
    words = line(image_of(EXTENDED, OPENMPI), settings)
    # Its directory need not be on PATH.
    at = words.index("/opt/ompi/bin/mpiexec")
    assert words[at - 1].endswith("mine.sqfs")
    assert words[-1] == "job"
    assert {*on_one_host("openmpi").items()} <= {*variables(words).items()}


@pytest.mark.parametrize(("tree", "family"), [(MPICH, "mpich"), (INTEL, "intel-mpi")])
def test_a_program_gets_the_variables_of_the_images_mpi(
    image_of: Callable[..., Path], settings: Settings, tree: Tree, family: str
) -> None:
    words = launch.program_line(image_of(EXTENDED, tree), ["mpiexec", "--version"], settings)
    assert words[-2:] == ["mpiexec", "--version"]
    assert variables(words) == dict(on_one_host(family))


def test_a_shell_names_the_image(image_of: Callable[..., Path], settings: Settings) -> None:
    assert variables(launch.shell_line(image_of(EXTENDED), settings)) == {"PS1": "mine/1> "}


@pytest.mark.parametrize(
    ("trees", "problem", "hint"),
    [
        ((EXTENDED,), "`mine/1` has no MPI", "start the command with `envbuild exec`"),
        ((EXTENDED, OPENMPI, MPICH), "`mine.sqfs` has several MPIs", "srun --mpi=TYPE apptainer exec"),
        ((MPICH,), "is a squashfs that envbuild did not build", "`apptainer exec` runs it"),
    ],
)
def test_ranks_that_cannot_start(
    image_of: Callable[..., Path], settings: Settings, trees: tuple[Tree, ...], problem: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=problem) as raised:
        line(image_of(*trees), settings)
    assert hint in raised.value.hint


def test_the_hosts_libraries_are_not_put_into_it(image_of: Callable[..., Path], settings: Settings) -> None:
    with pytest.raises(RequestError, match="--mpi host: only for images that envbuild built"):
        line(image_of(EXTENDED, MPICH), settings, mpi=True)
