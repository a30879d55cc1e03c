"""`envbuild layer`: finished layers as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message, print_next
from envbuild.cli.progress import session
from envbuild.errors import raise_all
from envbuild.quoting import shell_path

app = typer.Typer(
    help="Carry finished layers to a machine that cannot build them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("export")
def export(
    spec: options.Spec,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", parser=options.directory, help="Where to write the layers.")
    ],
    compression: options.CompressionOption = "zstd",
    store: options.Store = None,
    upstream: options.Upstream = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Copy the finished layers of a spec's image to a directory, for `layer import`.

    The store has to hold them, as it does after `build`. Layers that are in DIR already stay.
    """
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        moved = workflows.layer.export_layers(
            spec, settings, to=to, compression=compression, upstreams=upstream or ()
        )
    if json:
        print_json({"directory": moved.directory, "layers": moved.layers})
    print_message(f"{to}: {len(moved.layers)} layers, {moved.size_bytes / 1e6:.0f} MB written")
    directory = shell_path(to)
    print_message(f"next: carry {directory}, the spec and its lock; there, `envbuild layer import DIR`")


@app.command("import")
def import_(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory that `layer export` wrote.")
    ],
    trust: Annotated[
        bool, typer.Option("--trust", help="Take layers from other accounts; images of them say so.")
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Put finished layers into the store, so that `build --locked` composes images of them.

    Each is compared with its digests first. Damaged and missing layers are listed together, and the others
    imported. Needs neither user namespaces nor subordinate ids.
    """
    with session(json=json, store=store) as settings:
        moved = workflows.layer.import_layers(directory, settings, trust=trust)
    if json:
        print_json({"directory": moved.directory, "layers": moved.layers})
    raise_all(moved.wrong)
    new = sum(row.state == "imported" for row in moved.layers)
    print_message(f"{new} of {len(moved.layers)} layers imported, {moved.size_bytes / 1e6:.0f} MB")
    print_next("build SPEC --locked")
