"""`envbuild module`: put an image behind `module load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild import workflows
from envbuild.cli import completion, options
from envbuild.cli.output import columns, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.quoting import shell_path, shell_quote

if TYPE_CHECKING:
    from envbuild.activate.install import InstallResult
    from envbuild.workflows.module import ListedModule

app = typer.Typer(help="Put images behind `module load`.", no_args_is_help=True, rich_markup_mode=None)

RootOption = Annotated[
    Path,
    typer.Option(
        "--root", metavar="DIR", parser=options.directory, help="Where modules and images are installed."
    ),
]


@app.command("install")
def install(
    image: options.Image,
    root: RootOption,
    link: Annotated[
        bool, typer.Option("--link", help="Refer to the image at its path instead of copying it.")
    ] = False,
    default: Annotated[
        bool, typer.Option("--default", help="Make it the version that `module load NAME` takes.")
    ] = False,
    require_pass: Annotated[
        bool,
        typer.Option(
            "--require-pass", help="Refuse an image that did not pass its test on a host like this one."
        ),
    ] = False,
    require_gpu: Annotated[
        bool,
        typer.Option(
            "--require-gpu",
            help="Refuse an image that did not pass its test on GPUs, on a host like this one.",
        ),
    ] = False,
    commands: Annotated[
        list[str] | None,
        typer.Option(
            "--command",
            metavar="NAME",
            help="Also make a wrapper for this command of the image (repeatable).",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the module of an extended image [the image's]."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="VERSION", help="Its version [the image's]."),
    ] = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Install an image as a module: wrappers for its commands, and a modulefile."""
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        if link:
            workflows.images.check_is_a_file(image)
        request = workflows.module.InstallRequest(
            image=workflows.images.image_file(image, settings),
            root=root,
            link=link,
            default=default,
            require_pass=require_pass,
            require_gpu=require_gpu,
            commands=commands or (),
            from_host=options.host_libraries(mpi, fabric),
            name=name,
            version=version,
        )
        installed = workflows.module.install_module(request, settings)
    if json:
        print_json(_install_data(installed))
    layout = installed.layout
    for command, why in installed.left_out.items():
        print_message(f"no wrapper for `{command}`: {why}")
    print_message(f"{layout.modulefile}: installed")
    use = shell_path(layout.root / "modulefiles")
    load = shell_quote(layout.label)
    print_message(f"next: module use {use} && module load {load}")


@app.command("ls")
def ls(
    root: RootOption,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """List the installed modules, with images and verdicts."""
    settings = workflows.settings.Settings.of(store=store, apptainer=apptainer)
    listed = workflows.module.list_modules(root, settings)
    if json:
        print_json([_list_data(item) for item in listed])
        return
    if listed:
        print_data(columns([_list_row(item) for item in listed]))
    else:
        print_message(f"{root}: nothing is installed")


@app.command("uninstall")
def uninstall(
    module: Annotated[
        str,
        typer.Argument(
            metavar="NAME[/VERSION]",
            help="The module, as `module load` takes it.",
            autocompletion=completion.modules,
        ),
    ],
    root: RootOption,
    every: Annotated[bool, typer.Option("--all", help="Remove all versions of NAME.")] = False,
    json: options.Json = False,
) -> None:
    """Remove a module: what `module install` wrote, and nothing else."""
    with session(json=json):
        results = workflows.module.uninstall_modules(module, root=root, every=every)
    if json:
        print_json(results)
    for result in results:
        print_message(f"{result.module}: uninstalled")
        if result.default_moved and result.default:
            print_message(f"{result.module.partition('/')[0]}: the default is now {result.default}")


def _install_data(installed: InstallResult) -> dict[str, Any]:
    layout = installed.layout
    return {
        "module": layout.label,
        "modulefile": layout.modulefile,
        "tcl_modulefile": layout.modulefile,
        "modulefiles": layout.root / "modulefiles",
        "home": layout.home,
        "commands": installed.commands,
        "left_out": installed.left_out,
        "changed": installed.changed,
        "replaced": installed.replaced,
        "default": installed.default,
        "warnings": installed.warnings,
    }


def _list_data(listed: ListedModule) -> dict[str, Any]:
    module, record = listed.module, listed.module.record
    return {
        "module": module.layout.label,
        "default": module.default,
        "digest": record.digest if record else None,
        "linked": bool(record and record.image),
        "image": module.image,
        "host_libraries": dict(record.host_libraries) if record else {},
        "verdict": {"state": listed.state, "text": listed.text},
        "home": module.layout.home,
        "modulefiles": [module.layout.modulefile],
        "replaced": module.kept,
        "problems": module.problems,
    }


def _list_row(listed: ListedModule) -> tuple[str, ...]:
    """Return module, kind, verdict, image, and its directory or its problems."""
    module, record = listed.module, listed.module.record
    return (
        f"{module.layout.label} (default)" if module.default else module.layout.label,
        "link" if record and record.image else "copy",
        listed.word,
        record.digest.removeprefix("sha256:")[:16] if record else "unknown",
        f"broken: {'; '.join(module.problems)}" if module.problems else str(module.layout.home),
    )
