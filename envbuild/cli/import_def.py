"""`envbuild import-def`: a spec from a Dockerfile, definition file or requirements file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_message


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A Dockerfile, Apptainer definition file or requirements file.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str | None,  # a path would lose a slash at its end
        typer.Option("-o", "--output", metavar="SPEC.yaml", help="Write the spec there.", show_default=False),
    ] = None,
    recipes: options.Recipes = None,
    json: options.Json = False,
) -> None:
    """Propose a spec for a Dockerfile, definition file or requirements file, and report what it lacks."""
    place = None if output is None else workflows.places.file_named(output)
    imported = workflows.import_def.import_definition(source, tuple(recipes or ()), output=place)
    for line in imported.to_lines():
        print_message(line)
    if json:
        print_data(imported.to_json())
    elif output is None:
        print_data(imported.text)
    if output is not None:
        print_message(f"next: envbuild lock {workflows.words.typed(output)}")
