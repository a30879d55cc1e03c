"""`envbuild build`: from a spec to an image."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from envbuild.cli.options import (
    ApptainerOption,
    Compression,
    CompressionOption,
    FromOption,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
    UpstreamOption,
)
from envbuild.cli.streams import put, say
from envbuild.errors import counted

if TYPE_CHECKING:
    from envbuild.workflows.build import Built


def command(
    spec: SpecArgument,
    output: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time; and a path would lose a slash at its end
        typer.Option(
            "-o",
            "--output",
            metavar="IMAGE.sif",
            help="The image to write [STEM.sif beside the spec].",
            show_default=False,
        ),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse a lock that does not satisfy the spec.")
    ] = False,
    offline: OfflineOption = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build every layer anew and compare with the store.")
    ] = False,
    compression: CompressionOption = Compression.ZSTD,
    sources: FromOption = None,
    store: StoreOption = None,
    upstream: UpstreamOption = None,
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
            compression=compression.value,
            sources=tuple(sources or ()),
            upstreams=tuple(upstream or ()),
        )
    if json:
        put(dumps(built.to_data()))
    _show(built)
    _end(built)


def _show(built: Built) -> None:
    state = "is up to date" if built.unchanged else "built"
    size = f"{built.size_bytes / 1e6:.0f} MB, {counted(built.layers, 'layer')}"
    say(f"{built.path}: {state} ({size}, {built.digest[:19]})")


def _end(built: Built) -> None:
    from envbuild.workflows.words import typed  # noqa: PLC0415  # start-up time

    if built.preflight.passed:
        say(f"next: envbuild test {typed(built.path)}")
        return
    for finding in built.preflight.findings():
        if finding.status == "FAIL":
            say(finding.line())
    say(f"{built.path}: written, but some programs would not start (see above)")
    raise typer.Exit(4)
