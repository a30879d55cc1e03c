"""`envbuild build`: from a spec to an image."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Optional

import typer

from envbuild.cli.options import (
    ApptainerOption,
    FromOption,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
    put,
    say,
)


def command(
    spec: SpecArgument,
    output: Annotated[
        Optional[Path],  # noqa: UP045  # typer reads it at run time
        typer.Option(
            "-o", "--output", metavar="IMAGE.sif", help="The image to write [STEM.sif beside the spec]."
        ),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse a lock that does not satisfy the spec.")
    ] = False,
    offline: OfflineOption = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build every layer anew and compare with the store.")
    ] = False,
    flat: Annotated[bool, typer.Option("--flat", help="One partition instead of layers.")] = False,
    sources: FromOption = None,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Build the image of a spec: lock if needed, plan, build what the store lacks, compose, check."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.build import build_image  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=recipes, site=site, emit=emit)
        built = build_image(
            spec,
            settings,
            output=output,
            locked=locked,
            offline=offline,
            rebuild=rebuild,
            flat=flat,
            sources=tuple(sources or ()),
        )
    if json:
        put(built.to_json())
    state = "is up to date" if built.unchanged else "built"
    say(
        f"{built.path}: {state} ({built.size_bytes / 1e6:.0f} MB, {built.layers} layers, {built.digest[:19]})"
    )
    if not built.preflight.passed:
        for finding in built.preflight.findings():
            if finding.status == "FAIL":
                say(finding.line())
        say(f"{built.path}: is written, and its processes would not all start: see above")
        raise typer.Exit(4)
    say(f"next: envbuild test {shlex.quote(str(built.path))}")
