"""`envbuild build`: from a spec to an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import pluralize

if TYPE_CHECKING:
    from pathlib import Path

    from envbuild.preflight.report import PreflightReport
    from envbuild.workflows.build import Built


def command(
    spec: options.Spec,
    output: Annotated[
        str | None,  # a path would lose a slash at its end
        typer.Option(
            "-o", "--output", metavar="IMAGE.sif", help="The image to write [STEM.sif beside the spec]."
        ),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse a lock that does not satisfy the spec.")
    ] = False,
    offline: options.Offline = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build every layer anew and compare with the store.")
    ] = False,
    compression: options.CompressedBy = "zstd",
    sources: options.From = None,
    store: options.Store = None,
    upstream: options.Upstream = None,
    apptainer: options.Apptainer = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Build the image of a spec: lock if needed, plan, build what the store lacks, compose, check."""
    with session(json=json, store=store, apptainer=apptainer, recipes=recipes, site=site) as settings:
        request = workflows.build.BuildRequest(
            spec=spec,
            output=output,
            locked=locked,
            offline=offline,
            rebuild=rebuild,
            compression=compression,
            sources=sources or (),
            upstreams=upstream or (),
        )
        built = workflows.build.build_image(request, settings)
    if json:
        print_json(_data(built))
    state = "is up to date" if built.unchanged else "built"
    size = f"{built.size_bytes / 1e6:.0f} MB, {pluralize(built.layers, 'layer')}"
    print_message(f"{built.path}: {state} ({size}, {built.digest[:19]})")
    if built.preflight.passed:
        print_message(f"next: envbuild test {workflows.arguments.shell_path(built.path)}")
        return
    fail_preflight(built.path, built.preflight)


def fail_preflight(image: Path, preflight: PreflightReport) -> None:
    """Print what an image that was written lacks, and exit with the code of a check that failed."""
    for result in preflight.findings():
        if result.status == "FAIL":
            print_message(result.line())
    print_message(f"{image}: written, but some programs would not start (see above)")
    raise typer.Exit(4)


def _data(built: Built) -> dict[str, object]:
    return {
        "image": built.path,
        "digest": built.digest,
        "size_bytes": built.size_bytes,
        "layers": built.layers,
        "unchanged": built.unchanged,
        "preflight": {"passed": built.preflight.passed, "problems": built.preflight.problems},
    }
