"""`envbuild schema`: JSON Schemas by which editors complete and check files."""

from __future__ import annotations

from typing import Annotated

import typer

from envbuild import workflows
from envbuild.cli.output import print_data
from envbuild.workflows.choices import SchemaKind


def command(kind: Annotated[SchemaKind, typer.Argument(metavar="NAME", help="The kind of file.")]) -> None:
    """Print the JSON Schema of a kind of file.

    An editor with a YAML language server completes and checks a file whose
    first line is `# yaml-language-server: $schema=FILE`.
    """
    print_data(workflows.schema.schema_text(kind))
