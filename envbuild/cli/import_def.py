"""`envbuild import-def`: a spec from a Dockerfile, definition file or requirements file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from envbuild.cli.options import JsonOption, RecipesOption
from envbuild.cli.streams import put, say


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
        Optional[str],  # noqa: UP045  # typer reads it at run time; a path would lose a slash at its end
        typer.Option("-o", "--output", metavar="SPEC.yaml", help="Write the spec there.", show_default=False),
    ] = None,
    recipes: RecipesOption = None,
    json: JsonOption = False,
) -> None:
    """Propose a spec for a Dockerfile, definition file or requirements file, and report what it lacks."""
    from envbuild.workflows.import_def import import_definition  # noqa: PLC0415  # start-up time
    from envbuild.workflows.places import file_named  # noqa: PLC0415
    from envbuild.workflows.words import typed  # noqa: PLC0415

    place = None if output is None else file_named(output)
    imported = import_definition(source, tuple(recipes or ()), output=place)
    for line in imported.to_lines():
        say(line)
    if json:
        put(imported.to_json())
    elif output is None:
        put(imported.text)
    if output is not None:
        say(f"next: envbuild lock {typed(output)}")
