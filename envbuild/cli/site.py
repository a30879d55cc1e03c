"""`envbuild site`: machines, described so that images fit them."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Optional

import typer

from envbuild.cli import values
from envbuild.cli.options import JsonOption
from envbuild.cli.streams import put, say
from envbuild.errors import raise_all

_HELP = "Machines, described so that images fit them."

app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
def ls(json: JsonOption = False) -> None:
    """List the sites that can be named."""
    from envbuild.workflows.sites import list_sites  # noqa: PLC0415  # start-up time

    listing = list_sites()
    if json or listing.sites:
        put(listing.to_json() if json else listing.to_text())
    # What can be read is listed all the same.
    raise_all(listing.mistakes)


@app.command("show")
def show(
    site: Annotated[
        Path,
        typer.Argument(
            metavar="SITE",
            help="A name of `site ls`, or a file.",
            show_default=False,
            autocompletion=values.sites,
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Show a site file; --json adds the facts of it."""
    from envbuild.workflows.sites import show_site  # noqa: PLC0415  # start-up time

    text, data = show_site(site)
    put(json_text.dumps(data, indent=2) if json else text)


@app.command("probe")
def probe(
    output: Annotated[
        Optional[str],  # noqa: UP045  # typer reads it at run time; a path would lose a slash at its end
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it here; the stem becomes the name.",
            show_default=False,
        ),
    ] = None,
    mpi: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            "--mpi", metavar="DIR", help="Where an MPI is installed (repeatable).", show_default=False
        ),
    ] = None,
) -> None:
    """Draft a site file of what can be seen here."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.places import file_named  # noqa: PLC0415
    from envbuild.workflows.sites import probe_machine  # noqa: PLC0415

    with listening(json=False):
        text = probe_machine(output=None if output is None else file_named(output), mpi=tuple(mpi or ()))
    if output is None:
        put(text)
    else:
        say(f"{output}: written")


@app.command("check")
def check(
    site: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="SITE",
            help="A name of `site ls`, or a file; the machine's own if absent.",
            envvar="ENVBUILD_SITE",
            show_default=False,
            autocompletion=values.sites,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare a site file with this machine.

    Exit code 4 when something differs.
    """
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.sites import check_site  # noqa: PLC0415

    with listening(json=json):
        checked = check_site(site)
    if json:
        put(json_text.dumps(checked.to_data(), indent=2))
    else:
        for line in checked.to_lines():
            put(line)
    say(f"{checked.path}: {'holds' if checked.holds else 'the machine differs'}")
    raise typer.Exit(0 if checked.holds else 4)


@app.callback()
def _group() -> None:
    """Describe machines, so that images fit them."""
