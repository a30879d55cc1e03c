"""`envbuild forecast`: which images a change of the machine breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import columns, level, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError, pluralize, some

if TYPE_CHECKING:
    from envbuild.workflows.forecast import Forecast, KnownImage, Need

_STATES = ("breaks", "broken", "warns", "unknown", "holds")


def command(
    every: Annotated[
        list[Path] | None,
        typer.Option("--all", metavar="DIR", help="Modules and images below DIR (repeatable)."),
    ] = None,
    then: Annotated[
        Path | None,
        typer.Option("--then", metavar="SITE", help="The site as it will be: a file, as for --site."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--change", metavar="FACT=VALUE", help="A fact that changes: driver.version=580.65 (repeatable)."
        ),
    ] = None,
    needs: Annotated[
        bool, typer.Option("--needs", help="List what the images need of a machine instead.")
    ] = False,
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
    if needs and (then is not None or change):
        raise RequestError("--needs takes no change", hint="leave --then and --change out")
    with session(json=json, store=store, site=site) as settings:
        if needs:
            listed, unknown = workflows.forecast.needs(every, settings)
        else:
            from_host = options.host_libraries(mpi, fabric)
            found = workflows.forecast.forecast(
                every, settings, then=then, changes=change or (), from_host=from_host
            )
    if needs:
        _print_needs(listed, unknown, json=json)
        return
    if json:
        print_json(found.document())
    else:
        print_data("\n".join(_lines(found)))
    raise typer.Exit(4 if found.breaks else 0)


def _print_needs(listed: tuple[Need, ...], unknown: tuple[KnownImage, ...], *, json: bool) -> None:
    if json:
        missing = [{"name": image.name, "problem": image.problem} for image in unknown]
        print_json({"needs": list(listed), "unknown": missing})
        return
    for need in listed:
        print_data(f"{need.need}\n  {need.reason}; {need.source}")
        print_data(f"  {pluralize(len(need.images), 'image')}: {some(need.images, 8)}")
    for image in unknown:
        print_message(f"unknown: {image.name}: {image.problem}", problem=True)


def _lines(found: Forecast) -> Iterator[str]:
    for fact, (now, later) in found.changes.items():
        yield f"{fact}: {now} -> {later}"
    rows: list[tuple[str, str, str, str]] = []
    scanned = 0
    counts: Counter[str] = Counter()
    for image, outlooks in found.images:
        scanned += image.scanned
        for outlook in sorted(outlooks, key=lambda outlook: _STATES.index(outlook.state)):
            counts[outlook.state] += 1
            if outlook.state == "holds" and level() <= 0:
                continue
            reasons = [f"{result.rule}: {result.reason}" for result in outlook.results] or [image.problem]
            fixes = dict.fromkeys(result.hint for result in outlook.results if result.hint)
            rows.append((outlook.state, image.name, outlook.partition, reasons[0]))
            rows += [("", "", "", reason) for reason in reasons[1:]]
            rows += [("", "", "", f"fix: {fix}") for fix in fixes]
    if rows:
        yield columns(rows)
    summary = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state]) or "no images"
    first = f"; {pluralize(scanned, 'image')} scanned for the first time" if scanned else ""
    yield f"{found.site}: {summary}{first}"
