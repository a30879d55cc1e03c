"""`envbuild inspect`: the description of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json

if TYPE_CHECKING:
    from envbuild.workflows.inspect import Inspection


def command(
    image: options.Image,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Show an image's name, parts, recipes, environment, jobs and last verdict."""
    settings = workflows.settings.Settings.of(store=store, apptainer=apptainer)
    inspection = workflows.inspect.inspect_image(image, settings)
    manifest = inspection.manifest
    if json:
        print_json({"digest": manifest.digest, "verdict": inspection.verdict, **manifest.model_dump()})
    else:
        print_data(format_inspection(inspection))


def format_inspection(inspection: Inspection) -> str:
    """Return lines of ``name: value``."""
    manifest = inspection.manifest
    recipes = ", ".join(f"{name} {version}" for name, version in sorted(manifest.recipes.items()))
    rows = [
        ("image", str(inspection.path)),
        ("name", f"{manifest.name}/{manifest.version}"),
        ("summary", manifest.summary),
        ("digest", manifest.digest),
        ("base", f"{manifest.base} ({manifest.architecture}, Python {manifest.python})"),
        ("recipes", recipes),
        ("unproven", ", ".join(manifest.unproven)),
        ("lock", manifest.lock_digest),
        ("verdict", inspection.verdict),
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
