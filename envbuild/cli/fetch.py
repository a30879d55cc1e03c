"""`envbuild fetch`: keep the locked files for later and for machines without network."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.options import (
    FromOption,
    JsonOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
)
from envbuild.cli.streams import put, say


def command(
    spec: SpecArgument,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Where to keep the files.", show_default=False)
    ],
    sources: FromOption = None,
    store: StoreOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Keep every locked file in DIR; `--from DIR` builds from it without network."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.fetch import fetch_spec  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415
    from envbuild.workflows.words import typed  # noqa: PLC0415

    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=None, recipes=recipes, site=site, emit=emit)
        fetched = fetch_spec(spec, settings, to=to, sources=tuple(sources or ()))
    if json:
        put(json_text.dumps({"directory": str(to), "files": fetched.files, "size_bytes": fetched.size_bytes}))
    say(f"{to}: {fetched.files} files, {fetched.size_bytes / 1e6:.0f} MB")
    say(f"next: envbuild build {typed(spec)} --offline --from {typed(to)}")
