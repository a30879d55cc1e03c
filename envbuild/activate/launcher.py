"""The launcher: one POSIX shell script, which every command of a module and `python3` of a kernelspec are.

It is ``launcher.sh``, after settings that are quoted for the shell and a check of the command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from envbuild.activate.layout import HOST_STAGE
from envbuild.activate.model import Installation
from envbuild.image.command_launchers import shell_text
from envbuild.image.environment import MISLEADING
from envbuild.image.runnable import Runnable, own_mpiexec_variables
from envbuild.site.binds import binds_of
from envbuild.site.host_libs import HostLibraryPlan
from envbuild.spec.site import SiteBind
from envbuild.system.apptainer import Apptainer, Bind

LAUNCHER = "launcher"
VENV_MAKER = "make_venv.py"

_TAB = "\t"


def launcher_text(installation: Installation) -> str:
    """Return the launcher of an installation."""
    runnable, home, host_libs = installation.runnable, installation.layout.home, installation.host_libs
    host_binds = host_libs.binds(home / HOST_STAGE) if host_libs else ()
    settings = {
        "label": installation.layout.label,
        "home": str(home),
        "image": str(installation.started_image),
        "stamp": installation.stamp,
        "repeat": shlex.join(installation.repeat),
        "digest": runnable.digest,
        "commands": f" {' '.join(installation.commands)} ",
        "python": installation.python,
        "mpi": runnable.mpi_family,
        "rank_words": shlex.join(runnable.rank_words),
        "observer_words": shlex.join(runnable.observer_words),
        "apptainer": str(installation.apptainer.program.absolute()),
        "userns": "yes" if installation.apptainer.unprivileged else "",
        "cdi": "yes" if installation.apptainer.knows_cdi else "",
        "oci_mode": "yes" if installation.apptainer.has_oci_mode else "",
        "binds": _bind_lines(binds_of(installation.binds)),
        "host_binds": _bind_lines(host_binds),
    }
    return _launcher_text(
        runnable,
        settings,
        "module",
        exports=_exports(host_libs),
        rank_environment=installation.rank_environment,
        lone_tasks=installation.lone_tasks,
    )


def kernel_launcher_text(
    directory: Path,
    *,
    image: Path,
    runnable: Runnable,
    apptainer: Apptainer,
    binds: Sequence[SiteBind],
    host_libs: HostLibraryPlan | None,
    python: str,
    stamp: str,
    repeat: Sequence[str],
) -> str:
    """Return the launcher of an image's `python3`, or of `python`, in the directory of a kernelspec."""
    settings = {
        "label": f"{runnable.name}/{runnable.version}",
        "home": str(directory),
        "image": str(image),
        "stamp": stamp,
        "repeat": shlex.join(repeat),
        "digest": runnable.digest,
        "commands": " python3 ",
        "python": python,
        "mpi": runnable.mpi_family,
        "rank_words": "",
        "observer_words": shlex.join(runnable.observer_words),
        "apptainer": str(apptainer.program.absolute()),
        "userns": "yes" if apptainer.unprivileged else "",
        "cdi": "yes" if apptainer.knows_cdi else "",
        "oci_mode": "yes" if apptainer.has_oci_mode else "",
        "binds": _bind_lines(binds_of(binds)),
        "host_binds": _bind_lines(host_libs.binds(directory / HOST_STAGE) if host_libs else ()),
    }
    return _launcher_text(runnable, settings, "kernel", exports=_exports(host_libs))


def _exports(host_libs: HostLibraryPlan | None) -> list[str]:
    """Return the commands that set the variables of host libraries in a container."""
    return [
        # SINGULARITYENV_* is for SingularityCE.
        f"export {prefix}ENV_{name}={shlex.quote(value)}"
        for name, value in sorted(host_libs.environment.items() if host_libs else ())
        for prefix in ("APPTAINER", "SINGULARITY")
    ]


def _launcher_text(
    runnable: Runnable,
    settings: Mapping[str, str],
    kind: str,
    *,
    exports: Sequence[str] = (),
    rank_environment: Mapping[str, str] | None = None,
    lone_tasks: Mapping[tuple[str, ...], str] | None = None,
) -> str:
    lines = [
        "#!/bin/sh",
        f"# The launcher of {settings['label']}, made by envbuild: `envbuild {kind} install` writes it anew.",
        *(f"_eb_{name}={shlex.quote(value)}" for name, value in settings.items()),
        f"_eb_tab={shlex.quote(_TAB)}",
        f"_eb_misleading={shlex.quote(' '.join(MISLEADING))}",
        f"_eb_again='install the {kind} again'",
        *exports,
        *([f"export LC_ALL={shlex.quote(runnable.locale)}"] if runnable.locale else []),
        *_defaults(own_mpiexec_variables(runnable)),
        "_eb_separate_ranks() {",
        *(f"    {line}" for line in _defaults(rank_environment or {})),
        "    :",
        "}",
        "# Set _eb_why to the reason why a task runs alone; empty if it may find the others.",
        "_eb_read_pmi() {",
        "    _eb_why=",
        *(
            f"    {_if_one_is_set(variables)}_eb_why={shlex.quote(why)} && return"
            for variables, why in (lone_tasks or {}).items()
        ),
        "    :",
        "}",
    ]
    return "\n".join(lines) + "\n" + shell_text() + data_text("launcher.sh")


def _defaults(variables: Mapping[str, str]) -> list[str]:
    """Return a command for each variable that sets it, unless the user has."""
    return [
        f'[ -n "${{{name}+x}}" ] || export {name}={shlex.quote(value)}'
        for name, value in sorted(variables.items())
    ]


def _if_one_is_set(variables: Sequence[str]) -> str:
    """Return the beginning of a command that runs if one of the variables is not empty, or there is none."""
    return f'[ -n "{"".join(f"${{{name}:-}}" for name in variables)}" ] && ' if variables else ""


def _bind_lines(binds: Sequence[Bind]) -> str:
    """Return a line for each bind, the last first: its source, a tab, Apptainer's mount specification."""
    return "\n".join(f"{bind.source}{_TAB}{bind}" for bind in reversed(binds))


def stamp_of(image: Path) -> str:
    """Return size, times of content and status, and inode of a file, as ``stat -L -c '%s %Y %Z %i'`` does."""
    status = image.stat()
    return f"{status.st_size} {status.st_mtime_ns // 10**9} {status.st_ctime_ns // 10**9} {status.st_ino}"


def data_text(name: str) -> str:
    """Return a file of this package, such as `VENV_MAKER`."""
    return resources.files("envbuild.activate").joinpath(name).read_text(encoding="utf-8")
