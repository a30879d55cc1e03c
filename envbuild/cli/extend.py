"""`envbuild extend`: packages, files and variables on top of a finished image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.build import fail_preflight
from envbuild.cli.output import named_lines, print_data, print_json, print_message
from envbuild.cli.progress import session

if TYPE_CHECKING:
    from envbuild.image.extension import ExtensionNote, Requests
    from envbuild.workflows.extend import Extended


def command(
    image: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGE",
            help="Any SIF or squashfs file, or HOST/NAME:TAG in a registry if there is no such file; it stays"
            " as it is.",
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…]", help="Python packages to add, as in `scipy>=1.11`."),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="NAME", help="The same as NAME (repeatable)."),
    ] = None,
    requirements: Annotated[
        list[Path] | None,
        typer.Option(
            "-r", "--requirements", metavar="FILE", help="Add what a requirements file lists (repeatable)."
        ),
    ] = None,
    wheels: Annotated[
        list[Path] | None, typer.Option("--wheel", metavar="FILE", help="Add a wheel file (repeatable).")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="SOURCE:/TARGET", help="Add a file at an absolute path (repeatable)."),
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Set a variable (repeatable).")
    ] = None,
    upgrade: Annotated[
        list[str] | None,
        typer.Option("--upgrade", metavar="NAME", help="Let an installed package change (repeatable)."),
    ] = None,
    executable: Annotated[
        str | None,
        typer.Option(
            "--python-executable",
            metavar="PATH",
            help="The Python to add packages to [the one on the image's PATH].",
        ),
    ] = None,
    output: Annotated[
        Path | None, options.output("NEW.sif", "The image to write [beside the old one].")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="MINE.sif", help="Add again what was added to this image."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NAME",
            help="With --like: leave out a package, file or variable (repeatable).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be added; write nothing.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Show what was added to the image so far.")] = False,
    offline: options.Offline = False,
    sources: options.SourceDirectories = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Write a new image with packages, files and variables on top of a finished one, in seconds."""
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        image = workflows.images.image_file(image, settings)
        like = workflows.images.image_file(like, settings) if like is not None else None
        if show:
            _show(image, json=json)
            return
        request = workflows.extend.ExtendRequest(
            image=image,
            output=output,
            python=(*(names or ()), *(python or ())),
            requirements=requirements or (),
            wheels=wheels or (),
            upgrade=upgrade or (),
            executable=executable,
            files=files or (),
            environment=environment or (),
            like=like,
            without=without or (),
            offline=offline,
            sources=sources or (),
            dry_run=dry_run,
        )
        extended = workflows.extend.extend_image(request, settings)
    if json:
        print_json(_data(extended))
    for package in extended.extension.packages:
        change = f"{package.replaced} → " if package.replaced else ""
        print_message(f"{package.name} {change}{package.version}")
    for change in extended.changes:
        print_message(f"unlike before: {change}")
    if extended.taken_over is not None:
        for name, value in _file_rows(extended.taken_over):
            print_message(f"taken over: {name} {value}")
    if not extended.written:
        print_message(f"{extended.path}: would be written")
        return
    print_message(f"{extended.path}: written ({extended.size_bytes / 1e6:.0f} MB)")
    if extended.preflight is not None and not extended.preflight.passed:
        fail_preflight(extended.path, extended.preflight)


def _show(image: Path, *, json: bool) -> None:
    note = workflows.extend.show_extensions(image)
    if json:
        print_json(note.model_dump() if note else {"extensions": []})
    elif note is None:
        print_message(f"{image}: nothing was added")
    else:
        print_data(named_lines(note_rows(note)))


def note_rows(note: ExtensionNote) -> list[tuple[str, str]]:
    """Return rows of a name and a value on what was added to an image."""
    rows = []
    for extension in note.extensions:
        requests = extension.requests
        rows += [("extended", f"{extension.image} ({extension.digest[:19]}, envbuild {extension.envbuild})")]
        rows += [("python", extension.python)] if extension.python else []
        rows += [("asked", text) for text in requests.python]
        rows += [("asked", f"--upgrade {name}") for name in requests.upgrade]
        for package in extension.packages:
            replaced = f", was {package.replaced}" if package.replaced else ""
            rows += [
                (
                    "added",
                    f"{package.name} {package.version} ({package.origin}, {package.sha256[:12]}{replaced})",
                )
            ]
        rows += _file_rows(requests)
    return rows


def _file_rows(requests: Requests) -> list[tuple[str, str]]:
    """Return rows of a name and a value on the files and variables that were requested."""
    return [
        *(("file", f"{file.target} ({file.sha256[:12]})") for file in requests.files),
        *(("environment", f"{name} = {value}") for name, value in requests.environment.items()),
    ]


def _data(extended: Extended) -> dict[str, object]:
    preflight = extended.preflight
    return {
        "image": extended.path,
        "written": extended.written,
        "size_bytes": extended.size_bytes,
        "changes": extended.changes,
        "preflight": None
        if preflight is None
        else {"passed": preflight.passed, "problems": preflight.problems},
        "taken_over": extended.taken_over.model_dump() if extended.taken_over else None,
        "extension": extended.extension.model_dump(),
    }
