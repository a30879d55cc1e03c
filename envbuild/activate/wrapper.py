"""The launcher: one POSIX shell script that every command of a module is a link to.

Pure: text from values. What the script does stands in ``launcher.sh``; here
only its settings are written, every one of them quoted for the shell.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Bind

LAUNCHER = "launcher"
VENV_MAKER = "make_venv.py"

_TAB = "\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launcher starts.

    Attributes
    ----------
    label : str
        ``name/version``, for messages.
    home : Path
        The installation as users reach it; absolute. Its ``bin`` holds the commands.
    image : Path
        The SIF; absolute.
    stamp : str
        Size and time of an image that is not a copy, as `stamp_of` has them; empty for a copy.
    digest : str
        The image's identity (``sha256:…``).
    commands : tuple of str
        Names that it may be called by.
    mpi : str
        Family of the image's MPI, whose tasks without its PMI are worth a warning; empty for none.
    apptainer : Path
        Tried first; then the one on PATH. ENVBUILD_APPTAINER goes before both.
    binds : tuple of SiteBind
        Host paths to bind where they exist.
    lent : tuple of Bind
        What the host lends of its MPI, in the order of the mounts; without one of them nothing starts.
    variables : tuple of (str, str)
        Set in the image.
    apart : tuple of (str, str)
        Set, unless the user has, where srun starts several tasks: their ranks are in containers apart.
    """

    label: str
    home: Path
    image: Path
    stamp: str
    digest: str
    commands: tuple[str, ...]
    mpi: str
    apptainer: Path
    binds: tuple[SiteBind, ...]
    lent: tuple[Bind, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()


def launcher_text(launch: Launch) -> str:
    """Return the launcher's text."""
    settings = {
        "label": launch.label,
        "home": str(launch.home),
        "image": str(launch.image),
        "stamp": launch.stamp,
        "digest": launch.digest,
        "commands": f" {' '.join(launch.commands)} ",
        "mpi": launch.mpi,
        "apptainer": str(launch.apptainer),
        "tab": _TAB,
        "binds": "\n".join(f"{bind.source}{_TAB}{mount_text(bind)}" for bind in reversed(launch.binds)),
        "lent": "\n".join(f"{bind.source}{_TAB}{bind}" for bind in reversed(launch.lent)),
    }
    lines = [
        "#!/bin/sh",
        f"# The launcher of {launch.label}, made by envbuild: `envbuild module install` writes it anew.",
        *(f"_eb_{name}={shlex.quote(value)}" for name, value in settings.items()),
        *(
            # The second is for SingularityCE.
            f"export {prefix}ENV_{name}={shlex.quote(value)}"
            for name, value in launch.variables
            for prefix in ("APPTAINER", "SINGULARITY")
        ),
        "_eb_apart() {",
        *(
            f'    [ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}'
            for name, value in launch.apart
        ),
        "    :",
        "}",
    ]
    return "\n".join(lines) + "\n" + _data("launcher.sh")


def stamp_of(image: Path) -> str:
    """Return size and time of change of a file, as ``stat -L -c '%s %Y'`` prints them."""
    status = image.stat()
    return f"{status.st_size} {status.st_mtime_ns // 10**9}"


def venv_maker_text() -> str:
    """Return the program that makes virtual environments inside the image."""
    return _data(VENV_MAKER)


def mount_text(bind: SiteBind) -> str:
    """Return a site's bind as ``apptainer --mount`` takes it."""
    return str(Bind(source=bind.source, target=bind.target, writable=bind.writable))


def _data(name: str) -> str:
    return resources.files("envbuild.activate").joinpath(name).read_text(encoding="utf-8")
