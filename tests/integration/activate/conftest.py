"""A small real image for these tests: shells, a few tools and a Python, in three layers."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild.activate.install import install
from envbuild.activate.launcher import stamp_of
from envbuild.activate.layout import Deprecation, Layout, read_record
from envbuild.activate.model import OWN_COMMANDS, Installation
from envbuild.image import startup
from envbuild.image.environment import default_environment, render_script
from envbuild.image.model import Manifest
from envbuild.spec.site import SiteBind
from envbuild.system import squashfs
from envbuild.system.apptainer import find
from envbuild.system.host import architecture
from tests.support import trees
from tests.support.images import read_manifest
from tests.support.places import make_place
from tests.support.users import in_user_namespace

PYTHON = Path("/usr/bin/python3.11")
STDLIB = Path("/usr/lib/python3.11")
TOOLS = ("bash", "cat", "env", "mkdir", "readlink", "sh", "sleep", "true")
TOOLS_OF_IMAGE = ("tool", "tool-cat", "tool-env", "tool-bash")
LEFT_OUT = (
    "test",
    "idlelib",
    "lib2to3",
    "tkinter",
    "pydoc_data",
    "ensurepip",
    "lib-dynload",
    "distutils",
    "config-*",
)

# Stands in for the real one: `venv` calls it with the new environment's Python.
ENSUREPIP = """
import os, pathlib, sys
script = pathlib.Path(sys.prefix, "bin", "installed")
script.write_text("#!" + sys.executable + "\\nimport sys\\nprint('script', sys.prefix, *sys.argv[1:])\\n")
script.chmod(0o755)
"""

PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Place:
    """A directory, and how to run something there with little in the environment."""

    path: Path

    @property
    def work(self) -> Path:
        return self.path / "work"

    def env(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        return {"PATH": PATH, "HOME": str(Path.home()), **(extra or {})}

    def run(
        self, *words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with little in the environment but what is given."""
        return subprocess.run(
            [str(word) for word in words],
            env=self.env(env),
            cwd=cwd or self.work,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def directory(self, name: str) -> Path:
        """Make a directory."""
        path = self.path / name
        path.mkdir(parents=True)
        return path


# A root directory that root of a namespace owns: a tmpfs, with the machine's directories mounted in it.
_OWN_ROOT = """\
mount -t tmpfs none "$1"
for path in /*; do
    if [ -L "$path" ]; then
        cp -P "$path" "$1/"
    elif [ -d "$path" ]; then
        mkdir "$1$path"
        mount --rbind "$path" "$1$path"
    fi
done
# Not chroot: nobody may make a user namespace in one.
cd "$1"
mkdir old
/usr/sbin/pivot_root . old
umount --lazy /old
shift
cd /
exec "$@"
"""


def as_root_who_owns_all(place: Place, *words: str | Path) -> list[str]:
    """Return the command line that runs another as root of a namespace, to whom `/` belongs as well."""
    root = place.directory("root")
    return [*in_user_namespace("--mount"), "sh", "-ec", _OWN_ROOT, "sh", str(root), *map(str, words)]


@pytest.fixture
def place(shared: Path) -> Place:
    result = Place(path=make_place(shared))
    result.directory("work")
    return result


@pytest.fixture(scope="session")
def images(shared: Path) -> dict[str, Path]:
    """Images of the same name: version 1.0 and 2.0."""
    return {version: make_image(shared / "small" / version, version=version) for version in ("1.0", "2.0")}


Activate = Callable[..., Layout]


@pytest.fixture
def activate(images: dict[str, Path], place: Place) -> Activate:
    """Install one of the images below the place, copied; or a copy of it that is linked there."""

    def call(
        version: str = "1.0",
        *,
        root: str = "modules",
        linked: bool = False,
        default: bool = False,
        binds: tuple[SiteBind, ...] = (),
        deprecation: Deprecation | None = None,
        processor: str | None = None,
    ) -> Layout:
        image = images[version]
        runnable = read_manifest(image)
        if processor is not None:
            runnable = runnable.model_copy(update={"architecture": processor})
        if linked:
            image = place.path / "images" / image.name
            image.parent.mkdir(exist_ok=True)
            if not image.exists():
                shutil.copy(images[version], image)
                os.utime(image, (1_600_000_000, 1_600_000_000))
        installation = Installation(
            root=place.path / root,
            image=image,
            runnable=runnable,
            commands=(*OWN_COMMANDS, *TOOLS_OF_IMAGE),
            linked=linked,
            stamp=stamp_of(image) if linked else "",
            apptainer=find(),
            binds=binds,
            deprecation=deprecation,
        )
        return install(installation, default=default).layout

    return call


@pytest.fixture(params=["copied", "linked"])
def active(request: pytest.FixtureRequest, activate: Activate) -> Layout:
    return activate(linked=request.param == "linked")


def image_of(active: Layout) -> Path:
    """Return the image that an installation starts."""
    record = read_record(active.home)
    assert record is not None
    return Path(record.image) if record.image else active.home / "image.sif"


def _replace(image: Path, other: Path) -> None:
    # Times count in seconds.
    time.sleep(1.1)
    shutil.copy(other, image)


def _change_a_byte(image: Path, other: Path) -> None:
    time.sleep(1.1)
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)


def _grow_unseen(image: Path, other: Path) -> None:
    before = image.stat()
    with image.open("ab") as file:
        file.write(b"more")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))


def _change_a_byte_unseen(image: Path, other: Path) -> None:
    """Keep size and time, as a careful program does that copies an image over another."""
    before = image.stat()
    _change_a_byte(image, other)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))


# What makes an image another one: each gets the image and a different one.
CHANGES = (_replace, _change_a_byte, _change_a_byte_unseen, _grow_unseen)


def tree_of_root(root: Path) -> None:
    for directory in (
        "dev",
        "etc",
        "home",
        "opt/env",
        "proc",
        "root",
        "sys",
        "tmp",
        "usr/bin",
        "usr/lib",
        "var/tmp",
    ):
        (root / directory).mkdir(parents=True)
    for name in ("bin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    for user in ("passwd", "group"):
        (root / "etc" / user).write_text("")
    for tool in (*(Path("/usr/bin", name).resolve() for name in TOOLS), PYTHON):
        copy_program(tool, root)
    # Under names that wrappers may have.
    for name in ("bash", "cat", "env"):
        (root / f"usr/bin/tool-{name}").symlink_to(name)
    if not (root / "usr/bin/sh").exists():
        (root / "usr/bin/sh").symlink_to(Path("/usr/bin/sh").resolve().name)
    (root / "usr/bin/python3").symlink_to(PYTHON.name)
    shutil.copytree(
        STDLIB, root / STDLIB.relative_to("/"), ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True
    )
    (root / STDLIB.relative_to("/") / "lib-dynload").mkdir()  # Python warns where it is missing
    pip = root / STDLIB.relative_to("/") / "ensurepip"
    pip.mkdir()
    (pip / "__init__.py").write_text("")
    (pip / "__main__.py").write_text(ENSUREPIP)
    for path, (text, mode) in startup.base_files().items():
        put(root, path, text, mode)
    for path in startup.EMPTY_DIRECTORIES:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)


def tree_of_python(root: Path) -> None:
    """Make a virtual environment, as the framework layers of a real image are."""
    put(root, "/opt/env/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    (root / "opt/env/bin").mkdir()
    for name in ("python", "python3"):
        (root / "opt/env/bin" / name).symlink_to(PYTHON)
    put(root, "/opt/env/lib/python3.11/site-packages/framework.py", "VERSION = '2.13.0'\n")
    put(root, "/opt/env/layer", "lower\n")


def tree_of_top(root: Path, manifest: Manifest) -> None:
    put(root, startup.ENVIRONMENT, render_script(manifest.environment), 0o755)
    put(root, "/opt/env/layer", "upper\n")
    put(root, "/opt/env/bin/tool", f'#!/bin/sh\necho "tool of {manifest.version}:" "$@"\n', 0o755)
    for path, (text, mode) in startup.top_files(manifest).items():
        put(root, path, text, mode)


def make_image(directory: Path, *, version: str) -> Path:
    """Build an image and return its path; the squashfs of the base lies above its directory, for others."""
    directory.mkdir(parents=True)
    layers = {
        "base": directory.parent / "base.sqfs",
        "wheel:framework": directory / "framework.sqfs",
        "metadata": directory / "metadata.sqfs",
    }
    tree = directory / "tree"
    if not layers["base"].exists():
        tree_of_root(tree)
        squash(tree, layers["base"])
    tree_of_python(tree)
    squash(tree, layers["wheel:framework"])
    told = facts(version)
    tree_of_top(tree, trees.manifest(file_system=None, **told))
    squash(tree, layers["metadata"])
    image = directory / f"small-{version}.sif"
    trees.write_image(image, layers, **told)
    return image


def facts(version: str) -> dict[str, Any]:
    """Return what the manifest of an image says."""
    return {
        "name": "small", "version": version, "summary": "a small image", "architecture": architecture(),
        # It has no locale at all.
        "environment": default_environment(has_locales=True), "accelerator": "cpu",
        "base": "debian-12", "glibc": "2.36", "python": "3.11",
        "mpi": "", "mpi_family": "", "recipes": {"framework": "2.13.0"}, "imports": ("framework",),
        "commands": TOOLS_OF_IMAGE, "conflicts": ("other",),
        "timeout_s": 60.0, "labels": {},
    }  # fmt: skip


def put(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def copy_program(program: Path, root: Path) -> None:
    """Copy a program and the libraries that it loads."""
    shutil.copy2(program, root / "usr/bin" / program.name)
    for line in subprocess.run(
        ["ldd", program], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        for word in line.split():
            if word.startswith("/"):
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(word, target)


def squash(tree: Path, target: Path) -> None:
    """Pack a tree, and remove it."""
    for path in tree.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    squashfs.make(tree, target)
    shutil.rmtree(tree)
