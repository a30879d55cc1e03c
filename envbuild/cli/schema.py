"""`envbuild schema`: what editors complete and check files by."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli.output import print_data


def command(
    kind: Annotated[
        Literal["spec", "recipe", "controls", "base", "site", "lock"],
        typer.Argument(metavar="NAME", help="What the file is."),
    ],
) -> None:
    """Print the JSON Schema of a kind of file: spec, recipe, controls, base, site or lock.

    An editor with a YAML language server completes and checks a file whose
    first line is `# yaml-language-server: $schema=FILE`.
    """
    print_data(workflows.schema.schema_text(kind))
