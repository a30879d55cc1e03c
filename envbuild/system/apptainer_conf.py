"""How an Apptainer was built and is set up: what it says of itself, and the settings that it names."""

from __future__ import annotations

import contextlib
import re
import stat
from dataclasses import dataclass

from envbuild.errors import EnvbuildError
from envbuild.system.files import read_input
from envbuild.system.survey import Survey

_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What decides how an Apptainer starts images.

    Attributes
    ----------
    setuid : bool or None
        Whether it may start with root's powers; None where nothing tells.
    starter : bool
        Whether the starter that has these powers is there, root's and with its bit.
    """

    setuid: bool | None = None
    starter: bool = False


def configuration(told: str, machine: Survey) -> Configuration:
    """Return how an Apptainer is set up.

    Parameters
    ----------
    told : str
        What its ``buildcfg`` writes; empty where it does not tell.
    machine : Survey
        Where the paths are that it names.
    """
    built = dict(re.findall(r"^(\w+)=(.*)$", told, flags=re.MULTILINE))
    setuid = _allows_setuid(built.get("APPTAINER_CONF_FILE", ""), machine)
    return Configuration(
        # One that was built without it has the setting nevertheless.
        setuid=False if built.get("APPTAINER_SUID_INSTALL") == "0" else setuid,
        starter=_has_starter(built.get("LIBEXECDIR", ""), machine),
    )


def _allows_setuid(path: str, machine: Survey) -> bool | None:
    """Return what a file of settings says of ``allow setuid``, where the last time counts."""
    if not path.startswith("/"):
        return None
    try:
        text = read_input(machine.path(path), limit_bytes=_LIMIT_BYTES).decode(errors="replace")
    except EnvbuildError:
        return None
    values = re.findall(r"^[ \t]*allow setuid[ \t]*=[ \t]*(\w+)", text, re.MULTILINE)
    return values[-1] != "no" if values else None


def _has_starter(directory: str, machine: Survey) -> bool:
    if not directory.startswith("/"):
        return False
    with contextlib.suppress(OSError, ValueError):
        status = machine.path(f"{directory}/apptainer/bin/starter-suid").stat()
        return bool(status.st_mode & stat.S_ISUID) and status.st_uid == 0
    return False
