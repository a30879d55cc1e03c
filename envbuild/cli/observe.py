"""`envbuild observe`: what recorded ranks used, and what slows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import columns, level, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import pluralize

if TYPE_CHECKING:
    from envbuild.workflows.observe import Observed


def command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of `envbuild launch --observe`.")
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE.html",
            parser=options.output_path,
            help="Also write a page to send round.",
        ),
    ] = None,
    openmetrics: Annotated[
        Path | None,
        typer.Option(
            "--openmetrics",
            metavar="FILE",
            parser=options.output_path,
            help="Also write the samples as OpenMetrics text.",
        ),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show what recorded ranks used, and what slows them; also of a job that was killed."""
    with session(json=json, store=store) as settings:
        if report is not None:
            workflows.pages.check_page(report, settings, option="--report")
        if openmetrics is not None:
            workflows.observe.check_openmetrics(openmetrics, settings)
        found = workflows.observe.observed(directory)
        if report is not None:
            workflows.observe_page.write_page(report, found)
        if openmetrics is not None:
            workflows.observe.write_openmetrics(openmetrics, found)
    for name, why in found.unread.items():
        print_message(f"unread: {name}: {why}", problem=True)
    if json:
        print_json(found.document())
    else:
        print_data("\n".join(_lines(found)))


def _lines(found: Observed) -> Iterator[str]:
    rows = workflows.observe_page.rank_rows(found.screening.ranks)
    if rows:
        yield columns([workflows.observe_page.RANK_COLUMNS, *rows])
        yield ""
    shown = [one for one in found.screening.findings if one.state != "fine" or level() > 0]
    for finding in shown:
        limit = f" (limit: {finding.threshold}; {finding.source})" if finding.threshold else ""
        yield f"{finding.state:<8} {finding.id}: {finding.observed}{limit}"
        if finding.hint:
            yield f"{'':<8} {finding.hint}"
    fine = len(found.screening.findings) - len(shown)
    if fine:
        yield f"{pluralize(fine, 'question')} without a finding (`-v` shows them)"
