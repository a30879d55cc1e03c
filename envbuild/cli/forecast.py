"""`envbuild forecast`: which images a change of the machine breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import columns, escape, level, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError, pluralize, some

if TYPE_CHECKING:
    from envbuild.workflows.forecast import Forecast, KnownImage, Needs, Outlook


def command(
    every: options.EveryImage = None,
    then: Annotated[
        Path | None,
        typer.Option("--then", metavar="SITE", help="The site as it will be: a file, as for --site."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--change",
            metavar="FACT=VALUE",
            help="A fact that changes: driver.version=580.65; null if it will not be known (repeatable).",
        ),
    ] = None,
    needs: Annotated[
        bool, typer.Option("--needs", help="List what the images need of a machine instead.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page to send round.")
    ] = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    store: options.Store = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Show which images a change of the machine breaks; exit code 4 if it breaks one.

    Others it warns of, or leaves unknown, or they hold. The driver, MPI or Slurm is not needed.
    """
    if not every:
        raise RequestError("no images are named", hint="name a directory of modules or images with --all DIR")
    if needs and (then is not None or change or html is not None):
        raise RequestError("--needs takes no change", hint="leave --then, --change and --html out")
    from_host = options.host_libraries(mpi, fabric)
    with session(json=json, store=store, site=site) as settings:
        if needs:
            needed = workflows.forecast.needs(every, settings, from_host)
        else:
            if html is not None:
                workflows.pages.check_page(html, settings)
            found = workflows.forecast.forecast(
                every, settings, then=then, changes=change or (), from_host=from_host
            )
            if html is not None:
                workflows.forecast_page.write_page(html, found)
    if needs:
        _print_needs(needed, json=json)
        return
    if json:
        print_json(found.document())
    else:
        print_data("\n".join(_lines(found)))
    raise typer.Exit(4 if found.breaks else 0)


def _print_needs(needed: Needs, *, json: bool) -> None:
    if json:
        print_json(needed.document())
        return
    for need, names in needed.listed:
        advised = "" if need.severity == "error" else " (advised)"
        print_data(escape(f"{need.need}{advised}"))
        print_data(escape(f"  {need.rule}: {need.reason}; {need.source}"))
        print_data(escape(f"  {pluralize(len(names), 'image')}: {some(names, 8)}"))
    for silenced, why in needed.silenced.items():
        print_data(escape(f"silenced {silenced}: {why}"))
    for image in needed.unknown:
        print_message(f"unknown: {image.name}: {image.problem}", problem=True)
    if level() > 0:
        for rule, names in needed.undecided:
            print_message(f"undecided: {rule.rule} for want of {rule.missing}: {some(names, 8)}")
    elif needed.undecided:
        rules = len({rule.rule for rule, _ in needed.undecided})
        print_message(f"undecided: {pluralize(rules, 'rule')} (`-v` lists them)", problem=True)


def _lines(found: Forecast) -> Iterator[str]:
    for fact, (now, later) in found.changes.items():
        yield f"{fact}: {now} -> {later}"
    if not found.changes:
        yield "nothing that is known of the site changes"
    outlooks = [(image, outlook) for image, outlooks in found.images for outlook in outlooks]
    states = list(found.counts)
    shown = [pair for pair in outlooks if pair[1].state != "holds" or level() > 0]
    shown.sort(key=lambda pair: states.index(pair[1].state))
    rows = [row for image, outlook in shown for row in _rows(image, outlook)]
    if rows:
        yield columns(rows)
    summary = ", ".join(f"{number} {state}" for state, number in found.counts.items()) or "no images"
    scanned = sum(image.scanned for image, _ in found.images)
    first = f"; {pluralize(scanned, 'image')} without facts scanned for the first time" if scanned else ""
    yield f"{found.site}: {summary}{first}"


def _rows(image: KnownImage, outlook: Outlook) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for an image in a partition, and rows below it with further reasons and what helps."""
    reasons = [f"{result.rule}: {result.reason}" for result in outlook.results] or [image.problem]
    fixes = dict.fromkeys(f"fix: {result.hint}" for result in outlook.results if result.hint)
    repairs = []
    if outlook.repair is not None:
        repairs = [f"repair: {outlook.repair.steps}", f"changes: {', '.join(outlook.repair.layers)}"]
    yield outlook.state, image.name, outlook.partition, reasons[0]
    yield from (("", "", "", text) for text in (*reasons[1:], *fixes, *repairs))
