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
    overlay : str
        What its settings say of overlay (``yes``, ``no``, ``try``, ``driver``); empty where they
        cannot be read or do not tell.
    setuid : bool or None
        Whether it may start with root's powers; None where nothing tells.
    starter : bool
        Whether the starter that has these powers is there, root's and with its bit.
    """

    overlay: str = ""
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
    settings = _settings(built.get("APPTAINER_CONF_FILE", ""), machine)
    setuid = settings["allow setuid"] != "no" if "allow setuid" in settings else None
    return Configuration(
        overlay=settings.get("enable overlay", ""),
        # One that was built without it has the setting nevertheless.
        setuid=False if built.get("APPTAINER_SUID_INSTALL") == "0" else setuid,
        starter=_has_starter(built.get("LIBEXECDIR", ""), machine),
    )


def _settings(path: str, machine: Survey) -> dict[str, str]:
    """Return the settings that matter here; the last of a name counts."""
    if not path.startswith("/"):
        return {}
    try:
        text = read_input(machine.path(path), limit_bytes=_LIMIT_BYTES).decode(errors="replace")
    except EnvbuildError:
        return {}
    return dict(re.findall(r"^[ \t]*(enable overlay|allow setuid)[ \t]*=[ \t]*(\w+)", text, re.MULTILINE))


def _has_starter(directory: str, machine: Survey) -> bool:
    if not directory.startswith("/"):
        return False
    with contextlib.suppress(OSError, ValueError):
        status = machine.path(f"{directory}/apptainer/bin/starter-suid").stat()
        return bool(status.st_mode & stat.S_ISUID) and status.st_uid == 0
    return False
