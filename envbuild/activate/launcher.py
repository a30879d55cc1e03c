"""The launcher: one POSIX shell script that every command of a module is a link to.

It is ``launcher.sh``, after settings that are quoted for the shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from envbuild.activate.layout import HOST_STAGE
from envbuild.activate.model import Installation
from envbuild.system.apptainer import Bind

LAUNCHER = "launcher"
VENV_MAKER = "make_venv.py"

_TAB = "\t"


def launcher_text(installation: Installation) -> str:
    """Return the launcher of an installation."""
    manifest, home, host_libs = installation.manifest, installation.layout.home, installation.host_libs
    label = installation.layout.label
    binds = [
        Bind(source=bind.source, target=bind.target, writable=bind.writable) for bind in installation.binds
    ]
    host_binds = host_libs.binds(home / HOST_STAGE) if host_libs else ()
    settings = {
        "label": label,
        "home": str(home),
        "image": str(installation.started_image),
        "stamp": installation.stamp,
        "digest": manifest.digest,
        "commands": f" {' '.join(installation.commands)} ",
        "mpi": manifest.mpi_family,
        "apptainer": str(installation.apptainer),
        "tab": _TAB,
        "binds": _bind_lines(binds),
        "host_binds": _bind_lines(host_binds),
    }
    lines = [
        "#!/bin/sh",
        f"# The launcher of {label}, made by envbuild: `envbuild module install` writes it anew.",
        *(f"_eb_{name}={shlex.quote(value)}" for name, value in settings.items()),
        *(
            # SINGULARITYENV_* is for SingularityCE.
            f"export {prefix}ENV_{name}={shlex.quote(value)}"
            for name, value in sorted(host_libs.environment.items() if host_libs else ())
            for prefix in ("APPTAINER", "SINGULARITY")
        ),
        "_eb_separate_ranks() {",
        *(
            f'    [ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}'
            for name, value in sorted(installation.apart.items())
        ),
        "    :",
        "}",
    ]
    return "\n".join(lines) + "\n" + data_text("launcher.sh")


def _bind_lines(binds: Sequence[Bind]) -> str:
    """Return a line for each bind, the last first: its source, a tab, Apptainer's mount specification."""
    return "\n".join(f"{bind.source}{_TAB}{bind}" for bind in reversed(binds))


def stamp_of(image: Path) -> str:
    """Return size and modification time of a file, as ``stat -L -c '%s %Y'`` prints them."""
    status = image.stat()
    return f"{status.st_size} {status.st_mtime_ns // 10**9}"


def data_text(name: str) -> str:
    """Return a file of this package, such as `VENV_MAKER`."""
    return resources.files("envbuild.activate").joinpath(name).read_text(encoding="utf-8")
