"""Whether this machine's Apptainer may mount the layers of an image."""

from __future__ import annotations

import re
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.image.model import Manifest
from envbuild.system import host, process
from envbuild.system.apptainer import Apptainer
from envbuild.system.files import read_input

_LIMIT_BYTES = 1 << 20
_WAY_OUT = (
    "Apptainer's administrator has disabled overlay (`enable overlay = no`): a layered image does not start"
    " here; `envbuild build SPEC --flat -o IMAGE.sif` makes one that needs no overlay"
)


def overlay_warning(manifest: Manifest, apptainer: Apptainer) -> str | None:
    """Return what to warn of where an image needs overlay and the machine's settings forbid it.

    None where it may be used, or where the settings cannot be found: then Apptainer itself tells.
    """
    if len(manifest.parts) < 2:
        return None
    done = process.run([apptainer.program, "buildcfg"], env=host.environment(), timeout_s=30)
    place = re.search(r"^APPTAINER_CONF_FILE=(/.+)$", done.stdout, flags=re.MULTILINE)
    if not done.ok or place is None:
        return None
    try:
        text = read_input(Path(place[1]), limit_bytes=_LIMIT_BYTES).decode(errors="replace")
    except EnvbuildError:
        return None
    settings = re.findall(r"^[ \t]*enable overlay[ \t]*=[ \t]*(\w+)", text, flags=re.MULTILINE)
    return _WAY_OUT if settings[-1:] == ["no"] else None
