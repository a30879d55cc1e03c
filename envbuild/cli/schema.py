"""`envbuild schema`: what editors complete and check files by."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from envbuild.cli.streams import put


class Kind(enum.Enum):
    """What a file is."""

    SPEC = "spec"
    RECIPE = "recipe"
    CONTROLS = "controls"
    BASE = "base"
    SITE = "site"
    LOCK = "lock"
    FACTS = "facts"


def command(
    kind: Annotated[Kind, typer.Argument(metavar="NAME", help="What the file is.", show_default=False)],
) -> None:
    """Print the JSON Schema of a kind of file: spec, recipe, controls, base, site, lock or facts.

    An editor with a YAML language server completes and checks a file whose
    first line is `# yaml-language-server: $schema=FILE`.
    """
    from envbuild.workflows.schema import schema_text  # noqa: PLC0415  # start-up time

    put(schema_text(kind.value))
