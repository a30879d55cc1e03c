"""Inspect: what an image says of itself, and what was last proven of it here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envbuild.check import verdicts
from envbuild.errors import MachineError
from envbuild.image.model import Manifest
from envbuild.image.sif import read_manifest
from envbuild.system.fingerprint import fingerprint
from envbuild.workflows.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An image for people.

    Attributes
    ----------
    verdict : str
        One sentence on the last test of this image on a host like this one.
    """

    path: Path
    manifest: Manifest
    verdict: str

    def to_json(self) -> str:
        """Return it as JSON: the manifest with digest and verdict."""
        data = {"digest": self.manifest.digest, "verdict": self.verdict, **self.manifest.model_dump()}
        return json.dumps(data, indent=2, sort_keys=True)

    def to_text(self) -> str:
        """Return it as lines of ``name: value``."""
        manifest = self.manifest
        recipes = ", ".join(f"{name} {version}" for name, version in sorted(manifest.recipes.items()))
        rows = [
            ("image", str(self.path)),
            ("name", f"{manifest.name}/{manifest.version}"),
            ("summary", manifest.summary),
            ("digest", manifest.digest),
            (
                "base",
                f"{manifest.base} ({manifest.architecture}, Python {manifest.python})",
            ),
            ("recipes", recipes),
            ("lock", manifest.lock_digest),
            ("verdict", self.verdict),
        ]
        for layer in manifest.file_system.layers if manifest.file_system else ():
            size = f"{layer.size_bytes / 1e6:.1f} MB"
            imported = ", imported" if layer.imported else ""
            rows.append(("layer", f"{layer.name} ({size}, {layer.digest[7:19]}{imported})"))
        for variable in manifest.environment:
            sign = {"set": "=", "prepend": "+=", "unset": "unset"}[variable.operation]
            rows.append(("environment", f"{variable.name} {sign} {variable.value}".rstrip()))
        rows += [("job", f"{job.id}: {job.title}") for job in manifest.jobs]
        return "\n".join(f"{name + ':':<13}{value}" for name, value in rows if value)


def inspect_image(image: Path, settings: Settings) -> Shown:
    """Read an image's manifest and its last verdict on a host like this one.

    Raises
    ------
    RequestError
        It is no image of ours.
    """
    manifest = read_manifest(image)
    try:
        here = fingerprint(settings.find_apptainer())
    except MachineError:
        here = fingerprint()  # an image can be read where nothing can run it
    sentence = verdicts.sentence(settings.store, manifest.digest, here=here)
    return Shown(path=image, manifest=manifest, verdict=sentence)
