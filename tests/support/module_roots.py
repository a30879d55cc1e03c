"""Module roots with small images, installed without Apptainer: nothing in them can be started."""

from __future__ import annotations

from pathlib import Path

from envbuild.activate.install import checked_root, install
from envbuild.activate.launcher import stamp_of
from envbuild.activate.layout import Layout
from envbuild.activate.model import Installation
from envbuild.system.apptainer import Apptainer
from tests.support.images import read_manifest

APPTAINER = Apptainer(program=Path("/usr/bin/apptainer"), version="1.4.5")


def put_module(
    image: Path, root: Path, label: str, *, linked: bool = False, default: bool = False, verdict: str = ""
) -> Layout:
    """Install an image under the label ``NAME/VERSION``; `verdict` is the record that the module keeps."""
    name, _, version = label.partition("/")
    installation = Installation(
        root=checked_root(root),
        image=image,
        runnable=read_manifest(image),
        linked=linked,
        stamp=stamp_of(image) if linked else "",
        apptainer=APPTAINER,
        name=name,
        version=version,
        verdict_record=verdict,
    )
    return install(installation, default=default).layout
