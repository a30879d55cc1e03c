"""Images that many tests share, built by an installed envbuild."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.forked import fork_server
from tests.support.hostmpi import HostMpi, unpack
from tests.support.installed import install
from tests.support.places import make_place, swept
from tests.support.slurm import Cluster
from tests.support.torture.ground import Ground, make_ground
from tests.support.users import as_root, shared_directory

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Desk:
    """A directory to work in, a store and the installed command.

    With a cluster, commands run on its login node.
    """

    place: Path
    command: Path
    store: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cluster: Cluster | None = None
    root: bool = False
    """Whether commands run as root of a user namespace."""

    def envbuild(
        self, *words: str | Path, code: int | None = 0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run the command with this desk's store and hold it to an exit code."""
        return self.run([self.command, *words], code=code, **options)

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        umask: int = -1,
        timeout: float = 1500,
        script: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command at this desk, in a forked process if the server of the installed one serves it."""
        place = cwd or self.place
        line = [str(word) for word in argv]
        if self.cluster is not None:
            line = self.cluster.on_login(line, cwd=place, root=self.root)
        elif self.root:
            line = as_root(line)
        environment = {**os.environ, "ENVBUILD_STORE": str(self.store), **self.env, **(env or {})}
        if not script and fork_server(self.command).serves(line, environment):
            finished = fork_server(self.command).run(
                line, cwd=place, env=environment, umask=umask, timeout=timeout
            )
        else:
            finished = subprocess.run(
                line,
                cwd=place,
                env=environment,
                input=script,
                capture_output=True,
                text=True,
                umask=umask,
                timeout=timeout,
            )
        if code is not None:
            assert finished.returncode == code, f"{line}\n{finished.stdout}\n{finished.stderr}"
        return finished

    def apptainer(
        self, *words: str | Path, code: int | None = 0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run plain Apptainer."""
        return self.run(["apptainer", *words], code=code, **options)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the desk's directory."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    """A directory that other users reach, too."""
    with shared_directory() as path:
        yield path


@pytest.fixture(scope="session")
def common(shared: Path) -> Path:
    """A directory of all processes of `tests/run.py`, for what is made once; of pytest alone, its own."""
    return Path(os.environ.get("TESTS_COMMON", shared))


@contextmanager
def alone(common: Path, name: str) -> Iterator[None]:
    """Keep other processes from making what has this name in the common directory."""
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def installed(common: Path) -> Iterator[Path]:
    """Install envbuild from its wheel, where other users can run it, too; yield the command."""
    command = common / "venv/bin/envbuild"
    with alone(common, "venv"):
        if not command.exists():
            install(common)
    with closing(fork_server(command)):
        yield command


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """Remove what the test itself had made: a store with a framework is a GB, and there are many tests.

    What fixtures of a session or a module make was there before, for they come first.
    """
    with swept():
        yield


@pytest.fixture(scope="module", autouse=True)
def _tidied() -> Iterator[None]:
    """Remove what fixtures of a file of tests made, and what its tests left at the session's desk."""
    with swept():
        yield
    for place in _DESKS:
        left = [path for path in place.iterdir() if not any(map(path.match, LASTING))]
        subprocess.run(["rm", "-rf", "--", *left], check=True)


_DESKS: list[Path] = []
# What fixtures of a session make: the store, the images and what they are made of.
LASTING = (
    *("store", "kept", "ranks.py", "slurm.yaml"),
    *("pytorch-mpi.*", "plain.*", "on-*", "wheels-*", "host-*"),
)


def make_desk(shared: Path, name: str, command: Path, *, root: bool = False, lasting: bool = False) -> Desk:
    """Make a directory to work in below `shared`, with a store of its own.

    It lasts as long as the test or the fixture of a file that makes it, or to the end of the session.
    """
    place = make_place(shared, name, lasting=lasting)
    return Desk(place=place, command=command, store=place / "store", root=root)


@pytest.fixture(scope="session")
def desk(shared: Path, installed: Path) -> Desk:
    """A directory to work in, with the example spec in it."""
    desk = make_desk(shared, "desk", installed, lasting=True)
    _DESKS.append(desk.place)
    desk.write("pytorch-mpi.yaml", (ROOT / "examples/pytorch-mpi.yaml").read_text())
    return desk


@pytest.fixture(scope="session")
def build_once(common: Path, installed: Path, desk: Desk) -> Callable[[str], Path]:
    """Build a spec of the desk, whose layers are made once for the desks of all processes."""
    place = common / "seed"
    seed = Desk(place=place, command=installed, store=place / "store")

    @cache
    def build(name: str) -> Path:
        # Others build another spec over the same store meanwhile, and wait for the layers that both have.
        with alone(common, name):
            place.mkdir(exist_ok=True)
            seed.write(f"{name}.yaml", (desk.place / f"{name}.yaml").read_text())
            seed.envbuild("build", f"{name}.yaml")
            shutil.copy(place / f"{name}.lock.yaml", desk.place)
            copy_new(seed.store, desk.store)
        desk.envbuild("build", f"{name}.yaml")
        return desk.place / f"{name}.sif"

    return build


def copy_new(source: Path, target: Path) -> None:
    """Copy what a store lacks of another; both may be in use."""
    target.mkdir(exist_ok=True)
    target.chmod(source.stat().st_mode)
    # Records of layers before the blobs that they name: a layer of another's build is copied whole, or not.
    for name in sorted({path.name for path in source.iterdir()} - {"stage"}, reverse=True):
        for path in [source / name, *sorted((source / name).rglob("*"))]:
            copy = target / path.relative_to(source)
            if path.is_dir() and not copy.exists():
                copy.mkdir()
                copy.chmod(path.stat().st_mode)
            elif not path.is_dir() and not copy.exists():
                with suppress(FileNotFoundError):  # another's build has removed its own work
                    shutil.copy2(path, copy, follow_symlinks=False)


@pytest.fixture(scope="session")
def image(build_once: Callable[[str], Path]) -> Path:
    """The example's image."""
    return build_once("pytorch-mpi")


SPEC = 'name: {name}\nversion: "1"\nbase: debian-12\nmpi: {mpi}\nframeworks: []\n'


def spec_of(desk: Desk, name: str) -> Path:
    """Write the spec of a small image on an MPI."""
    return desk.write(f"on-{name}.yaml", SPEC.format(name=f"on-{name}", mpi=name))


@pytest.fixture(scope="session")
def image_on(desk: Desk, build_once: Callable[[str], Path]) -> Callable[[str], Path]:
    """Build a small image on an MPI, over the session's store."""
    return lambda name: build_once(spec_of(desk, name).stem)


@pytest.fixture(scope="session")
def host_mpi(desk: Desk) -> Callable[[str], HostMpi]:
    """Install an MPI outside of any image, from the wheel that a lock names."""

    @cache
    def install(name: str) -> HostMpi:
        desk.envbuild("fetch", spec_of(desk, name), "--to", f"wheels-{name}")
        return unpack(name, desk.place / f"wheels-{name}", desk.place / f"host-{name}")

    return install


@pytest.fixture(scope="session")
def small_image(image_on: Callable[[str], Path]) -> Path:
    """A small image on MPICH, without a framework: what tests take that need an MPI and no more."""
    return image_on("mpich")


@pytest.fixture(scope="session")
def debian_12(desk: Desk, build_once: Callable[[str], Path]) -> Path:
    """The squashfs of the base with this name."""
    desk.write("plain.yaml", 'name: plain\nversion: "1"\nbase: debian-12\n')
    build_once("plain")
    return blob_of(desk, layers(desk, "plain.yaml")["base"]["key"])


@pytest.fixture(scope="session")
def first_ground(debian_12: Path, shared: Path, installed: Path) -> Ground:
    """A tiny base and a spec on it that builds in seconds without a network; tests use `ground`."""
    place = shared / "ground"
    place.mkdir()
    return make_ground(place, installed, debian_12)


@pytest.fixture(scope="module")
def ground(first_ground: Ground, shared: Path) -> Ground:
    """A ground for the tests of one module, which may add to its index."""
    place = Path(tempfile.mkdtemp(prefix="ground-", dir=shared))
    place.chmod(0o755)
    return first_ground.copy(place)


def layers(desk: Desk, spec: str) -> dict[str, dict[str, str]]:
    """Return the plan's rows by layer."""
    shown = json.loads(desk.envbuild("plan", spec, "--json").stdout)
    return {row["name"]: row for row in shown["layers"]}


def blob_of(desk: Desk, key: str) -> Path:
    """Return the squashfs of a finished layer in a desk's store."""
    records = (json.loads(path.read_text()) for path in (desk.store / "layers").glob("*/*.json"))
    digest: str = next(record["blob"] for record in records if record["key"] == key).removeprefix("sha256:")
    return desk.store / "blobs/sha256" / digest[:2] / digest


def recipe_versions(desk: Desk, image: Path) -> dict[str, str]:
    """Return the versions of the recipes in an image, by name."""
    versions: dict[str, str] = json.loads(desk.envbuild("inspect", image, "--json").stdout)["recipes"]
    return versions


def locked_versions(desk: Desk, spec: str = "pytorch-mpi.yaml") -> dict[str, str]:
    """Return the versions of Python distributions in the lock of a spec, by name."""
    lock = yaml.safe_load((desk.place / spec).with_suffix(".lock.yaml").read_text())
    (target,) = lock["targets"].values()
    return {pin["name"]: pin["version"] for pin in target["python"]}
