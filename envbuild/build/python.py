"""Prefixes of Python wheels, installed by uv in the base's root.

Source: PEP 552 (unchecked hash-based .pyc files, which need no source times).
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from envbuild.build.sandbox import Sandbox
from envbuild.plan.model import InputFile
from envbuild.store.tree import Tree, entry, scan, walk
from envbuild.system.apptainer import Bind
from envbuild.system.leftovers import remove

# uv compiles with as many workers as there are cores; times and order leave no trace in the files.
_BYTECODE = {"PYC_INVALIDATION_MODE": "UNCHECKED_HASH"}

UV = "/mnt/uv"

Wheel = tuple[InputFile, Path]

# Runs in the sandbox, with the base's Python: an empty environment, kept as it was, and one that is filled.
# One start of the sandbox for both, since starting it takes longer than installing a small wheel; and nothing
# is imported that Python has not yet, since each module is read through the sandbox's file system.
_INSTALL = """\
import os, sys

uv, prefix, jobs = sys.argv[1:]
with open(jobs) as file:
    venv, install = (job.split("\\n") for job in file.read().split("\\n\\n"))

def call(arguments):
    code = os.spawnv(os.P_WAIT, uv, [uv, *arguments])
    if code:
        sys.exit(code if code > 0 else 1)

def copy(source, target):
    os.mkdir(target)
    for entry in os.scandir(source):
        place = f"{target}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        elif entry.is_dir():
            copy(entry.path, place)
        else:
            with open(entry.path, "rb") as here, open(place, "xb") as there:
                there.write(here.read())
            os.chmod(place, entry.stat().st_mode)

call(venv)
copy(prefix, "/opt/.skeleton")
call(install)
"""


def make_venv(
    prefix: str, *, stage: Path, sandbox: Sandbox, uv: Path, log: Path, debian_python: bool = False
) -> Path:
    """Make an empty virtual environment.

    Parameters
    ----------
    prefix : str
        Where it lies in the image (``/opt/env``).
    stage : Path
        An empty directory of ours.
    uv : Path
        The uv program.
    debian_python : bool
        Whether it sees the packages below /usr/lib/python3/dist-packages, too.

    Returns
    -------
    Path
        The root of the tree: ``stage/root``, which holds the prefix.
    """
    root = _prepare(stage, prefix)
    words = ["--system-site-packages"] if debian_python else []
    _run(
        [UV, "venv", "--no-config", "--python", "/usr/bin/python3", "--allow-existing", *words, prefix],
        stage=stage,
        sandbox=sandbox,
        uv=uv,
        log=log,
        what="the virtual environment could not be made",
        binds=(),
    )
    remove(root / "opt" / ".cache")
    _tidy(root)
    return root


def install_wheels(
    wheels: Sequence[Wheel], prefix: str, *, stage: Path, sandbox: Sandbox, uv: Path, log: Path
) -> Path:
    """Install verified wheels below a prefix, without network and without dependencies.

    Parameters
    ----------
    wheels : sequence of (InputFile, Path)
        Each wheel and where it lies; the file's directory holds that file alone.

    Returns
    -------
    Path
        The root of the tree, without the virtual environment's skeleton.
    """
    root = _prepare(stage, prefix)
    install, binds = installation(wheels, stage / "in")
    install += ["--python", f"{prefix}/bin/python", "--link-mode", "hardlink", "--compile-bytecode"]
    venv = ["venv", "--no-config", "--python", "/usr/bin/python3", "--allow-existing", prefix]
    (stage / "in" / "jobs").write_text("\n\n".join("\n".join(job) for job in (venv, install)))
    _run(
        ["/usr/bin/python3", "-I", "-S", "-c", _INSTALL, UV, prefix, "/mnt/jobs"],
        stage=stage,
        sandbox=sandbox,
        uv=uv,
        log=log,
        what="the wheels could not be installed",
        binds=binds,
    )
    remove(root / "opt" / ".cache")
    empty = stage / "empty"
    target = empty / prefix.lstrip("/")
    for directory in (empty, target.parent):
        touch_place(directory)
    (root / "opt" / ".skeleton").rename(target)
    _forget_where_wheels_came_from(root / prefix.lstrip("/"))
    for tree in (empty, root):
        _tidy(tree)
    _subtract(root, scan(empty))
    return root


def installation(wheels: Sequence[Wheel], inputs: Path) -> tuple[list[str], list[Bind]]:
    """Return uv's arguments that install exactly these wheels, and the binds that show them.

    Parameters
    ----------
    inputs : Path
        The directory that the sandbox sees at ``/mnt``; receives the list and the mount points.
    """
    arguments = ["pip", "install", "--no-config", "--no-deps", "--offline", "--no-index", "--no-build"]
    arguments += ["--require-hashes", "--requirements", "/mnt/requirements.txt"]
    binds = []
    lines = []
    touch_place(inputs / "wheels")
    for number, (wheel, path) in enumerate(wheels):
        place = f"/mnt/wheels/{number}"
        touch_place(inputs / "wheels" / str(number))
        arguments += ["--find-links", place]
        binds.append(Bind(source=path.parent.absolute(), target=place))
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{wheel.sha256}\n")
    (inputs / "requirements.txt").write_text("".join(lines))
    return arguments, binds


def _prepare(stage: Path, prefix: str) -> Path:
    """Lay out a stage: ``root`` becomes the layer, ``in`` is what the step may read."""
    root = stage / "root"
    for directory in (root, root / "opt", root / prefix.lstrip("/"), stage / "in"):
        touch_place(directory)
    (stage / "in" / "uv").touch()
    return root


def touch_place(directory: Path) -> None:
    """Make a directory, if it is not there, that every user sees."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)


def _run(
    argv: Sequence[str],
    *,
    stage: Path,
    sandbox: Sandbox,
    uv: Path,
    log: Path,
    what: str,
    binds: Sequence[Bind],
) -> None:
    sandbox.run(
        argv,
        binds=[
            # All of /opt is one mount, so that uv can hard-link from its cache into the prefix.
            Bind(source=(stage / "root" / "opt").absolute(), target="/opt", writable=True),
            Bind(source=(stage / "in").absolute(), target="/mnt"),
            Bind(source=uv.absolute(), target=UV),
            *binds,
        ],
        env={
            **_BYTECODE,
            "UV_CACHE_DIR": "/opt/.cache",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        },
        log=log,
        what=what,
    )


def _forget_where_wheels_came_from(prefix: Path) -> None:
    """Remove uv's note of a wheel's file times, and its line in RECORD: no two machines share them."""
    for note in sorted(prefix.glob("lib/python*/site-packages/*.dist-info/uv_cache.json")):
        note.unlink()
        record = note.with_name("RECORD")
        lines = record.read_text().splitlines(keepends=True)
        record.write_text(
            "".join(line for line in lines if not line.startswith(f"{note.parent.name}/{note.name},"))
        )


def _tidy(root: Path) -> None:
    """Give files and directories the modes that every user sees, and drop what tools left."""
    for path, status in list(walk(root)):
        if stat.S_ISLNK(status.st_mode):
            continue
        if path.name in (".lock", "CACHEDIR.TAG", ".gitignore") and path.parent.name in ("env", "mpi"):
            path.unlink()
            continue
        wanted = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644
        if stat.S_IMODE(status.st_mode) != wanted:
            path.chmod(wanted)


def _subtract(root: Path, skeleton: Tree) -> None:
    """Take the virtual environment's skeleton away: it has an owner of its own.

    What a wheel changed in it stays, and is told as a collision when the image is composed.
    """
    for name, what in sorted(skeleton.entries.items(), reverse=True):
        path = root / name
        if what.startswith("d "):
            if not any(path.iterdir()):
                path.rmdir()
        elif entry(root, name) == what:
            path.unlink()
