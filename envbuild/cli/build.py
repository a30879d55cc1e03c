"""`envbuild build`: from a spec to an image."""

from __future__ import annotations

from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypedDict

import typer

from envbuild.cli import values
from envbuild.cli.options import (
    ApptainerOption,
    FromOption,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
)
from envbuild.cli.streams import put, say, say_lines

if TYPE_CHECKING:
    from envbuild.workflows.again import Wanted
    from envbuild.workflows.build import Built
    from envbuild.workflows.settings import Settings
    from envbuild.workflows.timings import Timings


class Options(TypedDict):
    """What the command hands on as it was given."""

    outputs: tuple[str, ...]
    locked: bool
    offline: bool
    rebuild: bool
    flat: bool
    sources: tuple[Path, ...]


OutputOption = Annotated[
    Optional[list[str]],  # noqa: UP045  # typer reads it at run time
    typer.Option(
        "-o",
        "--output",
        metavar="[FORMAT:]PATH",
        help="The image to write [STEM.sif beside the spec]; with a format of `export`, that form"
        " as well (repeatable); `sif:` names the image itself.",
        show_default=False,
        autocompletion=values.outputs,
    ),
]


def command(
    spec: SpecArgument,
    output: OutputOption = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse a lock that does not satisfy the spec.")
    ] = False,
    offline: OfflineOption = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build every layer anew and compare with the store.")
    ] = False,
    flat: Annotated[bool, typer.Option("--flat", help="One partition instead of layers.")] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Tell where the time went, and keep it beside the logs.")
    ] = False,
    sources: FromOption = None,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Build the image of a spec: lock if needed, plan, build what the store lacks, compose, check."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.again import Wanted, recall  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    options: Options = {
        "outputs": tuple(output or ()),
        "locked": locked,
        "offline": offline,
        "rebuild": rebuild,
        "flat": flat,
        "sources": tuple(sources or ()),
    }
    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=recipes, site=site, emit=emit)
        wanted = Wanted.of(spec, settings, **options)
        # Who wants to know where the time goes does not want it to be saved.
        same = None if timings else recall(wanted, settings)
        if same is None:
            built, taken = _build(spec, settings, options, wanted, timings=timings)
        else:
            for warning in same.warned:
                emit(warning)
    if same is None:
        _tell_built(built, taken, json=json)
    else:
        if json:
            put(dumps(same.built))
        _tell(same.built)
        _tell_next(same.built)


def _build(
    spec: Path, settings: Settings, options: Options, wanted: Wanted, *, timings: bool
) -> tuple[Built, Timings | None]:
    from envbuild.workflows.build import build_image  # noqa: PLC0415  # start-up time
    from envbuild.workflows.timings import timed  # noqa: PLC0415

    work = partial(build_image, spec, settings, wanted=wanted, **options)
    return timed(work, settings.store, spec.stem) if timings else (work(), None)


def _tell_built(built: Built, taken: Timings | None, *, json: bool) -> None:
    data = built.to_data()
    if json:
        put(dumps(data if taken is None else {**data, "timings": taken.to_data()}))
    _tell(data)
    for form in built.written:
        say(form.to_text())
    if taken is not None:
        say_lines(taken.to_text())
    if built.preflight.passed:
        _tell_next(data)
        return
    for finding in built.preflight.findings():
        if finding.status == "FAIL":
            say(finding.line())
    say(f"{built.path}: is written, and its processes would not all start: see above")
    raise typer.Exit(4)


def _tell(built: dict[str, Any]) -> None:
    state = "is up to date" if built["unchanged"] else "built"
    size = f"{built['size_bytes'] / 1e6:.0f} MB, {built['layers']} layers"
    say(f"{built['image']}: {state} ({size}, {built['digest'][:19]})")


def _tell_next(built: dict[str, Any]) -> None:
    from envbuild.workflows.words import typed  # noqa: PLC0415  # start-up time

    say(f"next: envbuild test {typed(built['image'])}")
