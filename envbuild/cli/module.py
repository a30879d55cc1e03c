"""`envbuild module`: put an image behind `module load`."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import values
from envbuild.cli.options import (
    ApptainerOption,
    FabricOption,
    ImageArgument,
    JsonOption,
    Mpi,
    MpiOption,
    SiteOption,
    StoreOption,
    lending,
)
from envbuild.cli.streams import put, say
from envbuild.errors import RequestError

app = typer.Typer(help="Put images behind `module load`.", no_args_is_help=True, rich_markup_mode=None)


RootOption = Annotated[
    str,  # a path that is empty would become the working directory
    typer.Option("--root", metavar="DIR", help="Where modules and images are installed.", show_default=False),
]


def _root(text: str) -> Path:
    if not text:
        raise RequestError("the root for modules is empty", hint="name a directory with --root DIR")
    return Path(text)


@app.command("install")
def install(
    image: ImageArgument,
    root: RootOption,
    link: Annotated[
        bool, typer.Option("--link", help="Refer to the image where it lies instead of copying it.")
    ] = False,
    default: Annotated[
        bool, typer.Option("--default", help="Make it the version that `module load NAME` takes.")
    ] = False,
    mpi: MpiOption = Mpi.IMAGE,
    fabric: FabricOption = Mpi.IMAGE,
    store: StoreOption = None,
    apptainer: ApptainerOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Install an image with wrappers and modulefiles."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.module import install_module  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415
    from envbuild.workflows.words import quoted, typed  # noqa: PLC0415

    where = _root(root)
    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=site, emit=emit)
        installed = install_module(
            image,
            root=where,
            link=link,
            default=default,
            settings=settings,
            lend=lending(mpi, fabric),
        )
    if json:
        put(json_text.dumps(installed.to_data()))
    say(f"{installed.modulefile}: installed")
    use, load = typed(installed.modulefiles), quoted(installed.module)
    say(f"next: module use {use} && module load {load}")


@app.command("ls")
def ls(
    root: RootOption, store: StoreOption = None, apptainer: ApptainerOption = None, json: JsonOption = False
) -> None:
    """List what is installed, with images and verdicts."""
    from envbuild.workflows.module import list_modules  # noqa: PLC0415  # start-up time
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    settings = Settings.of(store=store, apptainer=apptainer, recipes=None, site=None)
    listed = list_modules(_root(root), settings)
    if json:
        put(json_text.dumps([each.to_data() for each in listed], indent=2))
        return
    rows = [each.to_row() for each in listed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        put("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    if not rows:
        say(f"{root}: nothing is installed")


@app.command("uninstall")
def uninstall(
    module: Annotated[
        str,
        typer.Argument(
            metavar="NAME[/VERSION]",
            help="The module, as `module load` takes it.",
            show_default=False,
            autocompletion=values.modules,
        ),
    ],
    root: RootOption,
    every: Annotated[bool, typer.Option("--all", help="Take away all versions of NAME.")] = False,
    json: JsonOption = False,
) -> None:
    """Take away what was installed, and nothing else."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.module import uninstall_modules  # noqa: PLC0415

    with listening(json=json):
        done = uninstall_modules(module, root=_root(root), every=every)
    if json:
        put(json_text.dumps([each.to_data() for each in done], indent=2))
    for each in done:
        say(f"{each.module}: uninstalled")
        if each.default_moved and each.default:
            say(f"{each.module.partition('/')[0]}: the default is now {each.default}")


@app.callback()
def _group() -> None:
    """Put images behind `module load`."""
