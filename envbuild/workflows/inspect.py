"""Inspect: the manifest of an image, and its last verdict on this host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import MachineError
from envbuild.image.model import Manifest
from envbuild.image.sif import read_manifest
from envbuild.store import verdicts
from envbuild.system.fingerprint import fingerprint
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """An image's manifest, and one sentence on its last test on a host like this one."""

    path: Path
    manifest: Manifest
    verdict: str


def inspect_image(image: Path, settings: Settings) -> Inspection:
    """Read an image's manifest and its last verdict on a host like this one."""
    manifest = read_manifest(image)
    try:
        here = fingerprint(settings.find_apptainer())
    except MachineError:
        here = fingerprint()  # an image can be read on a machine without Apptainer
    sentence = verdicts.sentence(settings.store, manifest.digest, here=here)
    return Inspection(path=image, manifest=manifest, verdict=sentence)
