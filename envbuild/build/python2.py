"""Prefixes of wheels for Python 2.7: unpacked by PyPA's installer, compiled by the base's own interpreter.

Source: the wheel format (PEP 427), Python 2.7's import.c (a .pyc holds the time of its source).
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path

from envbuild.build.sandbox import Sandbox
from envbuild.errors import BuildError
from envbuild.plan.model import InputFile
from envbuild.store.tree import walk
from envbuild.system.apptainer import Bind

# Where the base's Python 2.7 looks for packages below a prefix, see `plan.planner`.
_SITE = "lib/python2.7/site-packages"
# Some wheels hold files for other versions of the language: those that cannot be compiled are left.
_COMPILE = "import compileall, sys; compileall.compile_dir(sys.argv[1], maxlevels=50, quiet=1)"


def unpack_wheels(
    wheels: Sequence[tuple[InputFile, Path]], prefix: str, *, stage: Path, sandbox: Sandbox, log: Path
) -> None:
    """Unpack verified wheels below a prefix, without network and without dependencies.

    Parameters
    ----------
    wheels : sequence of (InputFile, Path)
        Each wheel and where it lies.
    prefix : str
        Where they lie in the image (``/opt/env``).
    stage : Path
        An empty directory of ours; ``stage/root`` receives the tree.

    Raises
    ------
    BuildError
        A wheel is malformed, or holds a file that another has already.
    """
    root = stage / "root"
    site = f"{prefix}/{_SITE}"
    (root / site.lstrip("/")).mkdir(parents=True)
    for wheel, path in wheels:
        _unpack(wheel, path, prefix, site, root)
    _make_uniform(root)
    sandbox.run(
        ["/usr/bin/python2.7", "-E", "-s", "-c", _COMPILE, prefix],
        binds=[Bind(source=(root / "opt").absolute(), target="/opt", writable=True)],
        env={},
        log=log,
        what="the wheels could not be compiled",
    )
    _make_uniform(root)


def _unpack(wheel: InputFile, path: Path, prefix: str, site: str, root: Path) -> None:
    # Late: only images with Python 2.7 need it.
    from installer import install  # noqa: PLC0415
    from installer.destinations import SchemeDictionaryDestination  # noqa: PLC0415
    from installer.sources import WheelFile  # noqa: PLC0415

    name = wheel.name.partition("-")[0]
    destination = SchemeDictionaryDestination(
        {
            "purelib": site,
            "platlib": site,
            "scripts": f"{prefix}/bin",
            "data": prefix,
            "headers": f"{prefix}/include/python2.7/{name}",
        },
        interpreter=f"{prefix}/bin/python",
        script_kind="posix",
        destdir=str(root),
    )
    try:
        with warnings.catch_warnings(), WheelFile.open(path) as source:
            # What it warns of is the wheel's affair, and names our lines.
            warnings.simplefilter("ignore")
            install(source, destination, additional_metadata={"INSTALLER": b"envbuild\n"})
    except Exception as error:  # whatever a malformed wheel makes it say
        raise BuildError(
            f"the wheel `{wheel.name}` could not be unpacked: {error}",
            hint="pin another version of it under `packages.python` of the spec",
        ) from error


def _make_uniform(root: Path) -> None:
    """Give all paths the modes that every user sees, and all files one time.

    A .pyc of Python 2.7 is stale when its source has another time than it
    had; all times in an image are the start of the epoch, so they must be
    that when the source is compiled.
    """
    for path, status in list(walk(root)):
        if stat.S_ISLNK(status.st_mode):
            continue
        path.chmod(0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644)
        os.utime(path, (0, 0))
