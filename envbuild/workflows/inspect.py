"""Inspect: the manifest of an image, what was added to it, and its last verdict on this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.image.extension import ExtensionNote, foreign_note, read_note
from envbuild.image.foreign import read_foreign
from envbuild.image.model import Manifest
from envbuild.image.sif import LOCK, read_data, read_manifest
from envbuild.lock.text import load
from envbuild.preflight.scan import changes_from
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
    packages: Mapping[str, str] = field(default_factory=dict)
    """Python distribution → version, by its lock."""


def inspect_image(image: Path, settings: Settings) -> Inspection:
    """Read an image's manifest, what was added to it, and its last verdict on a host like this one."""
    extended = foreign_note(image)
    if extended is not None:
        return Inspection(path=image, manifest=None, note=extended[1], verdict="")
    manifest = read_manifest(image)
    verdict = verdicts.latest(settings.store, manifest.digest, here=settings.this_host())
    changed: tuple[str, ...] = ()
    if verdict is not None and verdict.counts_for_bytes:
        changed = changes_from(manifest.digest, image, settings.store)
    lock = load(read_data(image, LOCK), image)
    return Inspection(
        path=image,
        manifest=manifest,
        note=read_note(read_foreign(image)),
        verdict=verdicts.sentence(verdict, changed=changed),
        packages={pin.name: pin.version for pin in lock.python},
    )
