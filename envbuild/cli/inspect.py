"""`envbuild inspect`: the description of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.extend import note_rows
from envbuild.cli.output import named_lines, print_data, print_json
from envbuild.cli.progress import session
from envbuild.quoting import shell_line

if TYPE_CHECKING:
    from envbuild.image.model import Manifest
    from envbuild.spec.model import LaunchSettings
    from envbuild.workflows.inspect import Inspection


def command(
    image: options.Image,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Show an image's name, parts, recipes, environment, jobs and last verdict."""
    with session(json=json, store=store, apptainer=apptainer) as settings:
        inspection = workflows.inspect.inspect_image(image, settings)
    manifest, note = inspection.manifest, inspection.note
    if json and manifest is None:
        print_json(note.model_dump() if note else {})
    elif json and manifest is not None:
        added = {"extensions": note.model_dump()["extensions"]} if note else {}
        data = {
            "digest": manifest.digest,
            "verdict": inspection.verdict,
            "packages": inspection.packages,
            "blas": inspection.blas,
        }
        print_json({**data, **manifest.model_dump(), **added})
    else:
        print_data(format_inspection(inspection))


def format_inspection(inspection: Inspection) -> str:
    """Return lines of ``name: value``."""
    rows = [("image", str(inspection.path))]
    if inspection.manifest is not None:
        rows += _manifest_rows(inspection.manifest, inspection)
    else:
        rows.append(("verdict", inspection.verdict))
    rows += note_rows(inspection.note) if inspection.note else []
    return named_lines(rows)


def _manifest_rows(manifest: Manifest, inspection: Inspection) -> list[tuple[str, str]]:
    recipes = ", ".join(f"{name} {version}" for name, version in sorted(manifest.recipes.items()))
    rows = [
        ("name", f"{manifest.name}/{manifest.version}"),
        ("summary", manifest.summary),
        ("verdict", inspection.verdict),
        ("asked", ", ".join(inspection.requested)),
        ("recipes", recipes),
        ("mpi", f"{manifest.mpi} {manifest.recipes.get(manifest.mpi, '')}".strip()),
        ("accelerator", manifest.accelerator),
        ("blas", ", ".join(path.rpartition("/")[2] for path in inspection.blas)),
        ("base", f"{manifest.base} ({manifest.architecture}, Python {manifest.python})"),
        ("unproven", ", ".join(manifest.unproven)),
        ("digest", manifest.digest),
        ("lock", manifest.lock_digest),
    ]
    if manifest.launch is not None:
        rows.append(("launch", _launch_text(manifest.launch)))
    rows += [("job", f"{job.id}: {job.title}") for job in manifest.jobs]
    for variable in manifest.environment:
        sign = {"set": "=", "prepend": "+=", "unset": "unset"}[variable.operation]
        rows.append(("environment", f"{variable.name} {sign} {variable.value}".rstrip()))
    rows += [("label", f"{name}={text}") for name, text in manifest.labels.items()]
    for layer in manifest.file_system.layers if manifest.file_system else ():
        size = f"{layer.size_bytes / 1e6:.1f} MB"
        imported = ", imported" if layer.imported else ""
        version = _version_of(layer.name, manifest, inspection)
        rows.append(("layer", f"{layer.name}{version} ({size}, {layer.digest[7:19]}{imported})"))
    return rows


def _launch_text(launch: LaunchSettings) -> str:
    """Return a command and its ranks: ``python train.py (ranks 8, nodes 2)``."""
    names = {
        "ranks": launch.ranks,
        "nodes": launch.nodes,
        "ranks per node": launch.ranks_per_node,
        "GPUs per rank": launch.gpus_per_rank,
        "minutes": launch.time_min,
    }
    counts = ", ".join(f"{name} {count}" for name, count in names.items() if count is not None)
    return f"{shell_line(launch.command)} ({counts})" if counts else shell_line(launch.command)


def _version_of(layer: str, manifest: Manifest, inspection: Inspection) -> str:
    """Return a space and the version of what a layer holds; empty if it is not one package."""
    kind, _, name = layer.partition(":")
    versions = {"wheel": inspection.packages, "source": inspection.packages, "framework": manifest.recipes}
    version = versions.get(kind, {}).get(name, "")
    return f" {version}" if version else ""
