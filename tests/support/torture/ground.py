"""A tiny base and a spec on it, from which an image is built in seconds without a network."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.forked import fork_server
from tests.support.mirrors import write_wheel
from tests.support.users import becoming

DEFINITION = """\
name: tiny
summary: A root with Python and little else
distribution: debian
suite: bookworm
version: "12"
glibc: "2.36"
root: {{kind: tar, place: {place}, sha256: {sha256}}}
architectures: [{architecture}]
packages: []
python: {{version: "3.11", abi: cp311}}
"""
SPEC = 'name: tiny\nversion: "1"\nbase: tiny\npackages: {python: [alpha, beta]}\n'
WHEELS = ("alpha", "beta")

# What a start and a virtual environment need of a root of Debian's.
_PROGRAMS = frozenset(("sh", "dash", "env", "cat", "true", "sleep", "python3", "python3.11"))
_LEFT_OUT = (
    *("usr/share", "usr/sbin", "usr/lib/apt", "usr/lib/dpkg", "var", "etc/ssl", "etc/ca-certificates"),
    *(f"usr/lib/x86_64-linux-gnu/{name}" for name in ("gconv", "perl-base", "engines-3", "krb5")),
    *(f"usr/lib/python3.11/{name}" for name in ("lib2to3", "distutils", "pydoc_data", "wsgiref", "xmlrpc")),
)

# What a build says that built layers.
BUILT = re.compile(r"^build \d+ layers?: ", re.MULTILINE)


@dataclass
class Outcome:
    """What a trial saw.

    Attributes
    ----------
    name : str
        What was tried.
    cases : int
        How often.
    facts : dict
        Figures for the table.
    problems : list of str
        What did not go as it must.
    """

    name: str
    cases: int = 0
    facts: dict[str, int | float | str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def hold(self, condition: object, problem: str) -> bool:
        """Note a problem where a condition does not hold; return whether it does."""
        if not condition:
            self.problems.append(problem)
        return bool(condition)

    def count(self, fact: str, number: int = 1) -> None:
        """Add to a figure."""
        self.facts[fact] = int(self.facts.get(fact, 0)) + number


@dataclass
class Ground:
    """A directory with configuration, spec, lock and the image as it must be.

    Root of a user namespace may use it, too: it builds as the directory's owner.

    Attributes
    ----------
    place : Path
        The directory, which other users reach.
    command : Path
        The installed envbuild.
    reference : bytes
        The image.
    """

    place: Path
    command: Path
    reference: bytes = b""

    @property
    def spec(self) -> Path:
        return self.place / "tiny.yaml"

    @property
    def kept(self) -> Path:
        return self.place / "kept"

    def environment(self, store: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a run."""
        own = {"XDG_CONFIG_HOME": str(self.place / "config"), "ENVBUILD_STORE": str(store)}
        return {**os.environ, **own, **(extra or {})}

    def desk(self, name: str) -> Path:
        """Make a directory with the spec and its lock."""
        desk = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.place))
        for file in (self.spec, self.spec.with_suffix(".lock.yaml")):
            if file.exists():
                shutil.copy(file, desk)
        self.own(desk)
        return desk

    def own(self, path: Path) -> None:
        """Give a path and all below it to the owner of the ground; matters to root of a namespace only."""
        if os.geteuid() == 0:
            status = self.place.stat()
            for each in (path, *path.rglob("*")):
                os.chown(each, status.st_uid, status.st_gid, follow_symlinks=False)

    def line(
        self, words: Sequence[str | Path], *, root: bool = False, before: Sequence[str] = ()
    ) -> list[str]:
        """Return the command line of envbuild as the owner of the ground, or as root of a namespace."""
        said = [*before, str(self.command), *map(str, words)]
        return said if root else [*self.as_owner(), *said]

    def as_owner(self) -> list[str]:
        """Return a command prefix that runs another as the owner of the ground."""
        status = self.place.stat()
        return becoming(status.st_uid, status.st_gid) if os.geteuid() == 0 else []

    def run(
        self,
        words: Sequence[str | Path],
        desk: Path,
        *,
        store: Path | None = None,
        env: Mapping[str, str] | None = None,
        root: bool = False,
        before: Sequence[str] = (),
        umask: int = 0o022,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run envbuild at a desk, in a forked process if its server serves the command."""
        line, environment = (
            self.line(words, root=root, before=before),
            self.environment(store or desk / "store", env),
        )
        server = fork_server(self.command)
        if server.serves(line, environment):
            return server.run(line, cwd=desk, env=environment, umask=umask, timeout=timeout, errors="replace")
        return subprocess.run(
            line,
            cwd=desk,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            umask=umask,
            timeout=timeout,
        )

    def start(
        self,
        line: Sequence[str],
        desk: Path,
        *,
        store: Path | None = None,
        env: Mapping[str, str] | None = None,
        umask: int = 0o022,
    ) -> subprocess.Popen[str]:
        """Start a command line at a desk in a process group of its own; all that it says is its output."""
        return subprocess.Popen(
            line,
            cwd=desk,
            env=self.environment(store or desk / "store", env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            umask=umask,
            start_new_session=True,
        )

    def build(self, *more: str | Path) -> list[str | Path]:
        """Return the words of a build that needs nothing but what is kept."""
        return ["build", "tiny.yaml", "--locked", "--offline", "--from", self.kept, *more]

    def is_reference(self, image: Path) -> bool:
        return image.is_file() and image.read_bytes() == self.reference

    def copy(self, place: Path) -> Ground:
        """Make a ground in another directory, with the same base and an index of its own."""
        shutil.copytree(self.place / "config", place / "config")
        shutil.copytree(self.place / "wheels", place / "wheels")
        shutil.copytree(self.place / "kept", place / "kept", copy_function=os.link)
        for name in ("root.tar", "tiny.sif"):
            os.link(self.place / name, place / name)
        for path in (self.spec, self.spec.with_suffix(".lock.yaml")):
            shutil.copy(path, place)
        site = place / "config/envbuild/site.yaml"
        site.write_text(site.read_text().replace(str(self.place / "wheels"), str(place / "wheels")))
        return replace(self, place=place)


def make_ground(place: Path, command: Path, base: Path) -> Ground:
    """Make a ground below a directory that others may pass.

    Parameters
    ----------
    base : Path
        The squashfs of a base of Debian 12, of which a tiny one is made.
    """
    ground = Ground(place=place, command=command)
    place.chmod(0o755)
    tar = small_root(base, place)
    bases = place / "config/envbuild/base-images"
    bases.mkdir(parents=True)
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    )
    digest = hashlib.sha256(tar.read_bytes()).hexdigest()
    (bases / "tiny.yaml").write_text(
        DEFINITION.format(place=tar, sha256=digest, architecture=architecture.stdout.strip())
    )
    wheels = place / "wheels"
    for number, name in enumerate(WHEELS):
        write_wheel(wheels, name, "1.0", filler=hashlib.shake_128(bytes([number])).digest(1 << 20))
    site = place / "config/envbuild/site.yaml"
    site.write_text(f"name: here\norigins: {{pypi: ['file://{wheels}']}}\n")
    ground.spec.write_text(SPEC)
    desk = ground.desk("reference")
    for words in (["build", "tiny.yaml"], ["fetch", "tiny.yaml", "--to", str(ground.kept)]):
        done = ground.run(words, desk)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
    shutil.copy(desk / "tiny.lock.yaml", place)
    shutil.copy(desk / "tiny.sif", place)
    ground.reference = (desk / "tiny.sif").read_bytes()
    return ground


def small_root(base: Path, place: Path) -> Path:
    """Write a tar of what a base has of Python, and little else."""
    root = place / "root"
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-d", root, base], check=True, capture_output=True
    )
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("usr/share", "usr/sbin", "var/tmp"):
        (root / name).mkdir(parents=True)
    for path in (root / "usr/bin").iterdir():
        if path.name not in _PROGRAMS:
            path.unlink()
    for cache in list(root.rglob("__pycache__")):
        shutil.rmtree(cache)
    tar = place / "root.tar"
    with tarfile.open(tar, "w") as archive:
        for path in sorted(root.iterdir()):
            archive.add(path, path.name)
    shutil.rmtree(root)
    return tar


def store_problems(store: Path) -> Iterator[str]:
    """Yield what is wrong with a store: half a layer, other bytes than the record says, a lock left."""
    for path in sorted((store / "layers").glob("*/*")):
        try:
            record = json.loads(path.read_text())
            digest = record["blob"].removeprefix("sha256:")
            content = (store / "blobs/sha256" / digest[:2] / digest).read_bytes()
        except (OSError, ValueError, KeyError) as error:
            yield f"record {path.name} cannot be used: {error}"
            continue
        if hashlib.sha256(content).hexdigest() != digest or len(content) != record["size_bytes"]:
            yield f"layer {record['name']} has other bytes than its record"
        if path.stem != record["key"].removeprefix("sha256:"):
            yield f"layer {record['name']} lies under another key"
    for path in sorted((store / "files/sha256").glob("*/*/*")):
        if hashlib.sha256(path.read_bytes()).hexdigest() != path.parent.name:
            yield f"file {path.name} has other bytes than its name says"


def left_behind(store: Path) -> list[str]:
    """Return what lies in a store's places for work in progress."""
    found = [str(path) for path in (store / "stage").glob("*")]
    return found + [str(path) for path in store.rglob(".unverified-*")]
