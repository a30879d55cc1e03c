"""`envbuild module`: put an image behind `module load`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild import workflows
from envbuild.cli import completion, options
from envbuild.cli.members import finish_members
from envbuild.cli.output import columns, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.quoting import shell_path, shell_quote

if TYPE_CHECKING:
    from envbuild.activate.install import InstallResult
    from envbuild.activate.installed import Uninstalled
    from envbuild.workflows.images import NamedImage
    from envbuild.workflows.members import Member
    from envbuild.workflows.module import ChosenDefault, ListedModule
    from envbuild.workflows.settings import Settings

app = typer.Typer(help="Put images behind `module load`.", no_args_is_help=True, rich_markup_mode=None)

RootOption = Annotated[
    Path,
    typer.Option(
        "--root", metavar="DIR", parser=options.directory, help="Where modules and images are installed."
    ),
]

OptionalRoot = Annotated[
    Path | None,
    typer.Option(
        "--root", metavar="DIR", parser=options.directory, help="Where modules and images are installed."
    ),
]


@app.command("install")
def install(
    images: options.ImagesToInstall,
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
    deprecate: Annotated[
        date | None,
        typer.Option(
            "--deprecate",
            metavar="DATE",
            parser=options.day,
            help="Say at each load that it is deprecated on this day, and which module to load (with --use).",
        ),
    ] = None,
    use: Annotated[
        str | None,
        typer.Option("--use", metavar="NAME", help="The module to load instead (with --deprecate)."),
    ] = None,
    mpi: options.Mpi = "image",
    fabric: options.Fabric = "image",
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Install images as modules: wrappers for their commands, and modulefiles."""
    deprecation = workflows.module.read_deprecation(deprecate, use)
    with session(json=json, store=store, apptainer=apptainer, site=site) as settings:
        for image in images if link else ():
            workflows.images.check_is_a_file(image)
        named = workflows.images.named_images(settings, images)
        if named.many and (commands or name or version or deprecation):
            hint = "install such an image alone"
            raise RequestError("--name, --version, --command and --deprecate are for one image", hint=hint)
        if named.many:
            workflows.module.check_modules_differ(named, root, settings)

        def install(member: Member[NamedImage], settings: Settings) -> InstallResult:
            request = workflows.module.InstallRequest(
                image=member.get().file(settings),
                root=root,
                link=link,
                default=default,
                require_pass=require_pass,
                require_gpu=require_gpu,
                commands=commands or (),
                from_host=options.host_libraries(mpi, fabric),
                name=name,
                version=version,
                deprecation=deprecation,
            )
            return workflows.module.install_module(request, settings)

        results = named.each(install, settings, last=True)
    if results.many:
        finish_members(
            results,
            row=lambda installed: ("installed", _install_text(installed)),
            data=_install_data,
            json=json,
        )
        return
    installed = results.only
    if json:
        print_json(_install_data(installed))
    layout = installed.layout
    for command, why in installed.left_out.items():
        print_message(f"no wrapper for `{command}`: {why}")
    print_message(f"{layout.modulefile}: installed")
    use = shell_path(layout.root / "modulefiles")
    load = shell_quote(layout.label)
    print_message(f"next: module use {use} && module load {load}")


def _install_text(installed: InstallResult) -> str:
    default = ", the default" if installed.default else ""
    return f"{installed.layout.label}{default}" + ("" if installed.changed else ": everything was in place")


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


@app.command("default")
def default(
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME/VERSION...",
            help="The modules, as `module load` takes them.",
            autocompletion=completion.modules,
            show_default=False,
        ),
    ] = None,
    root: OptionalRoot = None,
    every: Annotated[
        list[Path] | None,
        typer.Option(
            "--all",
            metavar="DIR",
            parser=options.directory,
            help="Of each module below DIR, the highest version that is not retired (repeatable).",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Choose the versions that `module load NAME` takes, such as the ones before."""
    if bool(every) == bool(modules) or (root is None) == bool(modules):
        hint = "`envbuild module default NAME/VERSION... --root DIR`, or `--all DIR`"
        raise RequestError("name modules and their --root, or --all and a directory", hint=hint)
    with session(json=json) as settings:
        if root is not None:
            members = workflows.module.named_modules(modules or (), root=root)
        else:
            members = workflows.module.highest_modules(every or (), settings)
        chosen = workflows.module.choose_defaults(members, settings)
    if chosen.many:
        finish_members(chosen, row=lambda one: ("default", _was(one)), data=_default_data, json=json)
        return
    only = chosen.only
    if json:
        print_json(_default_data(only))
    print_message(f"{only.layout.name}: the default is now {only.layout.version}; {_was(only)}")


def _was(chosen: ChosenDefault) -> str:
    return "none was chosen before" if chosen.before is None else f"it was {chosen.before}"


def _default_data(chosen: ChosenDefault) -> dict[str, Any]:
    return {"module": chosen.layout.name, "default": chosen.layout.version, "before": chosen.before}


@app.command("retire")
def retire(
    modules: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME/VERSION...",
            help="The modules, as `module load` takes them.",
            autocompletion=completion.modules,
        ),
    ],
    root: RootOption,
    until: Annotated[
        date | None,
        typer.Option(
            "--on",
            metavar="DATE",
            parser=options.day,
            help="The day on which they are to be uninstalled [after the configured `retirement_days`].",
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Offer retired modules again.")] = False,
    json: options.Json = False,
) -> None:
    """Hide modules from `avail`, and say at each load when they are to be uninstalled."""
    if undo and until is not None:
        raise RequestError("--undo takes no day", hint="leave --on out")
    with session(json=json) as settings:
        members = workflows.module.named_modules(modules, root=root)
        if undo:
            retired = workflows.module.end_retirement(members, settings)
        else:
            retired = workflows.module.retire_modules(members, settings, today=today(), until=until)
    if retired.many:
        finish_members(retired, row=_retired_row, data=_retired_data, json=json)
        return
    day = retired.only
    if json:
        print_json(_retired_data(day))
    print_message(f"{retired.items[0].name}: {', '.join(filter(None, _retired_row(day)))}")


def _retired_row(day: date | None) -> tuple[str, str]:
    return ("offered again", "") if day is None else ("retired", f"to be uninstalled on {day}")


def _retired_data(day: date | None) -> dict[str, Any]:
    return {"until": _day(day)}


@app.command("changes")
def changes(
    root: RootOption,
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME[/VERSION]...",
            help="The later versions [of each name the default, or the highest].",
            autocompletion=completion.modules,
            show_default=False,
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--from", metavar="VERSION", help="The earlier version [the next lower one]."),
    ] = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Write what changed between versions of modules, as a page of Markdown for users."""
    if before is not None and len(modules or ()) != 1:
        raise RequestError("--from is for one module", hint="`envbuild module changes NAME --from VERSION`")
    with session(json=json, store=store, apptainer=apptainer) as settings:
        found = workflows.module_changes.module_changes(modules or (), settings, root=root, before=before)
    if json:
        print_json([{**asdict(change), "retired_until": _day(change.retired_until)} for change in found])
    elif found:
        print_data(workflows.module_changes.markdown(found))
    else:
        print_message(f"{root}: no module has a version before its current one")


@app.command("uninstall")
def uninstall(
    root: RootOption,
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME[/VERSION]...",
            help="The modules, as `module load` takes them.",
            autocompletion=completion.modules,
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove all versions of NAME.")] = False,
    retired: Annotated[
        bool, typer.Option("--retired", help="Remove the retired modules whose day has come.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Remove modules: what `module install` wrote, and nothing else."""
    if retired == bool(modules) or (retired and every):
        hint = "`envbuild module uninstall NAME/VERSION... --root DIR`, or `--retired --root DIR`"
        raise RequestError("name modules, or add --retired without one", hint=hint)
    with session(json=json) as settings:
        if retired:
            due = workflows.module.uninstall_retired(root, settings, today=today())
        else:
            removed = workflows.module.uninstall_each(modules or (), settings, root=root, every=every)
    if retired:
        if not due.items:
            print_message(f"{root}: no retired module is due")
        if due.items or json:
            finish_members(due, row=lambda one: _uninstalled_row((one,)), data=asdict, json=json)
        return
    if removed.many:
        finish_members(removed, row=_uninstalled_row, data=lambda each: [*map(asdict, each)], json=json)
        return
    if json:
        print_json(removed.only)
    for result in removed.only:
        print_message(f"{result.module}: uninstalled")
        if default := _new_default(result):
            print_message(f"{result.module.partition('/')[0]}: {default}")


def _uninstalled_row(results: Sequence[Uninstalled]) -> tuple[str, str]:
    return "uninstalled", "; ".join(filter(None, map(_new_default, results)))


def _new_default(result: Uninstalled) -> str:
    return f"the default is now {result.default}" if result.default_moved and result.default else ""


def today() -> date:
    """Return the day, in UTC, which retirements are counted by."""
    return datetime.now(tz=UTC).date()


def _day(until: date | None) -> str | None:
    return until.isoformat() if until is not None else None


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
        "retired_until": _day(module.retired_until),
        "deprecated_on": _day(module.deprecation.on if module.deprecation else None),
        "use": module.deprecation.use if module.deprecation else None,
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
    note = " (default)" if module.default else ""
    if module.retired_until is not None:
        note += f" (retired until {module.retired_until})"
    if module.deprecation is not None:
        note += f" ({module.deprecation})"
    return (
        f"{module.layout.label}{note}",
        "link" if record and record.image else "copy",
        listed.word,
        record.digest.removeprefix("sha256:")[:16] if record else "unknown",
        f"broken: {'; '.join(module.problems)}" if module.problems else str(module.layout.home),
    )
