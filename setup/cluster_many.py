"""Twenty specs that share four families, built on the nodes of a private cluster: killed, resumed, updated.

No process can lock a file, as on a file system that shares no locks among machines. Layers are counted by the
inodes of their records: a layer that is built again gets another one.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.mirrors import write_deb, write_lists  # noqa: E402  # the path comes first
from tests.support.slurm import Cluster  # noqa: E402
from tests.support.users import as_root, in_user_namespace  # noqa: E402

# Family → its lines of a spec; one has a Debian package of ours, for which there is an update later.
FAMILIES = {
    "mpich": "mpi: mpich\n",
    "openmpi": "mpi: openmpi\n",
    "plain": "",
    "updated": "mpi: mpich\npackages: {{system: [centre-data], python: [{python}]}}\n",
}
PYTHON = ("attrs", "click", "packaging", "tomli", "six")
SUITE = "centre"
NO_LOCKS = """\
import errno, fcntl, os
def flock(file, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
"""
# In a mount namespace with one apt source more, which nothing signs.
_WITH_SOURCE = 'mount --bind "$1" /etc/apt/sources.list.d; shift; exec "$@"'
_WITHIN_S = 600


@dataclass(frozen=True)
class Many:
    """The specs, their store, and the cluster."""

    cluster: Cluster
    place: Path
    """What belongs to root of the namespaces; its jobs would not use a store that others can rename."""
    archive: Path
    """The archive with the Debian package of ours."""

    @property
    def specs(self) -> Path:
        """The directory of the specs."""
        return self.place / "specs"

    @property
    def store(self) -> Path:
        """The store of all."""
        return self.place / "store"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of envbuild, wherever it runs."""
        own = {"XDG_CONFIG_HOME": self.place / "config", "ENVBUILD_STORE": self.store}
        return {**os.environ, **{name: str(path) for name, path in own.items()}}

    def run(self, *words: str | Path, code: int | None = 0, shown: bool = True) -> str:
        """Run envbuild on the login node, show what it writes, and return its standard output."""
        # As root of the namespaces: no other id may map the ids of a Debian root there.
        line = self.cluster.on_login([ROOT / ".venv/bin/envbuild", *words], cwd=self.specs, root=True)
        no_locks = {"PYTHONPATH": f"{self.place / 'no-locks'}:{ROOT}"}
        done = subprocess.run(
            line,
            env={**self.environment, **no_locks, **self.cluster.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if shown:
            print("\n$ envbuild", shlex.join(map(str, words)))
            print("".join(f"  {text}\n" for text in (done.stderr + done.stdout).splitlines()), end="")
        if code is not None and done.returncode != code:
            sys.exit(f"this must end with exit code {code}; it ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    def outside(self, *words: str | Path) -> None:
        """Run envbuild as that root on this machine, which has a network and the archive of `centre-data`."""
        sources = self.place / "sources.list.d"
        enter = [*in_user_namespace("--mount"), "sh", "-ec", _WITH_SOURCE, "sh", sources]
        verb, *rest = words
        line = [*map(str, enter), str(ROOT / ".venv/bin/envbuild"), str(verb), "-q", *map(str, rest)]
        print("$ envbuild", shlex.join(map(str, words)), flush=True)
        env = {**self.environment, "PYTHONPATH": str(ROOT)}
        subprocess.run(line, cwd=self.specs, env=env, check=True)

    def members(self) -> list[dict[str, Any]]:
        """Return the members of the last submission."""
        text = self.run("status", "--submitted", "--json", code=None, shown=False)
        members: list[dict[str, Any]] = json.loads(text)["members"]
        return members

    def await_images(self, count: int) -> None:
        """Wait until so many images are written."""
        self._await(lambda: len(list(self.specs.glob("*.sif"))) >= count)

    def await_end(self) -> Counter[str]:
        """Wait until no member waits or runs; return how many are in each state."""
        self._await(lambda: not {"queued", "running"} & {member["state"] for member in self.members()})
        return Counter(member["state"] for member in self.members())

    def _await(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not holds():
            if time.monotonic() > deadline:
                sys.exit(f"not built within {_WITHIN_S} s: {self.members()}")
            time.sleep(0.5)

    def layers(self) -> dict[str, int]:
        """Return the layers of the store: key → the inode of the record."""
        return {path.stem: path.stat().st_ino for path in (self.store / "layers").glob("*/*.json")}

    def names(self) -> Mapping[str, str]:
        """Return the layers of the store: key → name."""
        paths = (self.store / "layers").glob("*/*.json")
        return {path.stem: json.loads(path.read_text())["name"] for path in paths}


def write(place: Path, archive: Path) -> None:
    """Write the specs, a base image with an archive of ours, and that archive."""
    for directory in ("specs", "config/envbuild/base-images", "sources.list.d", "no-locks"):
        (place / directory).mkdir(parents=True)
    for family, body in FAMILIES.items():
        for package in PYTHON:
            name = f"{family}-{package}"
            lines = body.format(python=package) if "{python}" in body else body + _python(package)
            text = f'name: {name}\nversion: "1"\nbase: centre-12\n{lines}'
            (place / f"specs/{name}.yaml").write_text(text)
    base = (ROOT / "base-images/debian-12.yaml").read_text()
    base = base.replace("name: debian-12", "name: centre-12").replace("preferred: true\n", "")
    base = base.replace("architectures:", f"  - debian:{SUITE}\narchitectures:")
    (place / "config/envbuild/base-images/centre-12.yaml").write_text(base)
    for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
        (place / "sources.list.d" / path.name).write_text(path.read_text())
    source = f"Types: deb\nURIs: file://{archive}\nSuites: {SUITE}\nComponents: main\nTrusted: yes\n"
    (place / "sources.list.d/centre.sources").write_text(source)
    (place / "no-locks/sitecustomize.py").write_text(NO_LOCKS)
    publish(archive, "1.0-1")
    subprocess.run(as_root(["chown", "-R", "0:0", place]), check=True)


def _python(package: str) -> str:
    return f"packages: {{python: [{package}]}}\n"


def publish(archive: Path, version: str) -> None:
    """Put a version of the Debian package into the archive."""
    write_lists(archive, SUITE, [write_deb(archive, "centre-data", version)])


def show(cluster: Cluster, place: Path, archive: Path) -> None:
    """Build all, killed halfway; then update one Debian package."""
    write(place, archive)
    many = Many(cluster, place, archive)
    show_builds(many)
    show_update(many)


def show_builds(many: Many) -> None:
    """Build all, killed halfway and resumed."""
    cluster, specs = many.cluster, sorted(many.specs.glob("*.yaml"))
    print(f"\n--- {len(specs)} specs as arrays, without locks")
    many.outside("lock", ".")
    _fetch(many)
    began = time.monotonic()
    many.run("build", "--submit", "--offline", "--test", ".")
    many.run("build", "--submit", "--offline", ".", code=2)

    many.await_images(len(specs) // 2)
    states = Counter(member["state"] for member in many.members())
    jobs = sorted({job for member in many.members() for job in member["jobs"]}, key=int)
    print(f"\n--- killed halfway: {dict(states)}; scancel {' '.join(jobs)}")
    subprocess.run(
        cluster.on_login(["scancel", *jobs], cwd=many.specs, root=True),
        env={**os.environ, **cluster.environment},
        check=True,
    )
    cluster.await_idle()
    many.run("status", "--submitted", code=None)
    before = many.layers()

    print("\n--- resumed")
    many.run("build", "--submit", "--offline", "--test", ".")
    states = many.await_end()
    many.run("status", "--submitted")
    _hold(states == {"done": len(specs)}, f"all must be done: {states}")
    after = many.layers()
    again = [key for key, inode in before.items() if after.get(key) != inode]
    _hold(not again, f"built twice: {[many.names().get(key, key) for key in again]}")
    print(f"{len(after)} distinct layers, {len(before)} before it was killed, {len(again)} built twice,")
    print(f"{time.monotonic() - began:.0f} s")


def show_update(many: Many) -> None:
    """Update one Debian package, which one family of four has."""
    print("\n--- an update of one Debian package")
    after = many.layers()
    publish(many.archive, "2.0-1")
    many.outside("lock", "--upgrade", "--system", ".")
    _fetch(many)
    many.run("build", "--submit", "--offline", ".")
    states = many.await_end()
    _hold(set(states) == {"done"}, f"all must be done: {states}")
    updated, names = many.layers(), many.names()
    again = [key for key, inode in after.items() if updated.get(key) != inode]
    new = Counter(names[key] for key in updated.keys() - after.keys())
    print(f"new layers: {dict(new)}; built twice: {len(again)}")
    expected = {"system": 1, "metadata": len(PYTHON)}
    _hold(new == expected and not again, f"the update must build {expected}")


def _fetch(many: Many) -> None:
    """Fetch what is locked into the store: the cluster has no way out."""
    for spec in sorted(many.specs.glob("*-*.yaml")):
        if not spec.name.endswith(".lock.yaml"):
            many.outside("fetch", spec.name, "--to", many.place / "kept")


def _hold(is_right: bool, problem: str) -> None:
    if not is_right:
        sys.exit(problem)
