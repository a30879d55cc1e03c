"""`envbuild doctor`: what this machine lacks, and what mends it."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from envbuild.cli.options import ApptainerOption, JsonOption, SiteOption, StoreOption
from envbuild.cli.streams import put


def command(
    verb: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time
        typer.Argument(
            metavar="[VERB]", help="Only what concerns one verb: build, test, …", show_default=False
        ),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Ask each address that packages come from, too.")
    ] = False,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Show what this machine lacks for which verb, why it matters, and the command that mends it.

    Exit code 5 when a verb cannot work here.
    """
    from envbuild.workflows.doctor import diagnose  # noqa: PLC0415  # start-up time
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=site)
    found = diagnose(verb, settings, online=online)
    put(found.to_json() if json else found.to_text())
    if found.blocked:
        raise typer.Exit(5)
