"""`envbuild fetch`: keep the locked files for later and for machines without network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message, print_next
from envbuild.cli.progress import session
from envbuild.quoting import shell_path


def command(
    spec: options.Spec,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where to keep the files.")],
    sources: options.SourceDirectories = None,
    store: options.Store = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    architecture: options.Architecture = None,
    json: options.Json = False,
) -> None:
    """Keep every locked file in DIR; `--from DIR` builds from it without network."""
    with session(json=json, store=store, recipes=recipes, site=site, architecture=architecture) as settings:
        fetched = workflows.fetch.fetch_spec(spec, settings, to=to, sources=sources or ())
    if json:
        print_json({"directory": str(to), "files": fetched.files, "size_bytes": fetched.size_bytes})
    print_message(f"{to}: {fetched.files} files, {fetched.size_bytes / 1e6:.0f} MB")
    given = options.given_again(recipes=recipes, site=site, architecture=architecture)
    print_next(f"build {shell_path(spec)}{given} --offline --from {shell_path(to)}")
