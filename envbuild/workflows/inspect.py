"""Inspect: the manifest of an image, what was added to it, and its last verdict on this host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild.image.extension import ExtensionNote, foreign_note, read_note
from envbuild.image.foreign import read_foreign
from envbuild.image.model import Manifest
from envbuild.image.sif import read_manifest
from envbuild.store import verdicts
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """An image's manifest, what was added to it, and one sentence on its last test on a host like this."""

    path: Path
    manifest: Manifest | None
    """None for an image of anyone that was extended."""
    note: ExtensionNote | None
    verdict: str


def inspect_image(image: Path, settings: Settings) -> Inspection:
    """Read an image's manifest, what was added to it, and its last verdict on a host like this one."""
    extended = foreign_note(image)
    if extended is not None:
        return Inspection(path=image, manifest=None, note=extended[1], verdict="")
    manifest = read_manifest(image)
    verdict = verdicts.latest(settings.store, manifest.digest, here=settings.this_host())
    note = read_note(read_foreign(image))
    return Inspection(path=image, manifest=manifest, note=note, verdict=verdicts.sentence(verdict))
