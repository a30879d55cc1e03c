"""Whether this machine's Apptainer may mount the layers of an image."""

from __future__ import annotations

from envbuild.image.model import Manifest
from envbuild.system.apptainer import Apptainer
from envbuild.system.apptainer_conf import configuration
from envbuild.system.survey import Survey

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
    forbidden = configuration(apptainer.buildcfg(), Survey()).overlay == "no"
    return _WAY_OUT if forbidden else None
