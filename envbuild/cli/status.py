"""`envbuild status`: whether images and modules passed their test on a host like this one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from envbuild import workflows
from envbuild.cli import options, submission
from envbuild.cli.output import print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import RequestError

if TYPE_CHECKING:
    from envbuild.workflows.settings import Settings
    from envbuild.workflows.status import Status


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|MODULE",
            help="Images (files, or HOST/NAME:TAG), or with --root modules.",
            show_default=False,
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Take the names as modules that are installed in DIR."),
    ] = None,
    every: Annotated[
        Path | None, typer.Option("--all", metavar="DIR", help="Show all modules that are installed in DIR.")
    ] = None,
    submitted: Annotated[
        bool,
        typer.Option("--submitted", help="Show what became of the last `build --submit` or `test --submit`."),
    ] = False,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Show which images or modules passed their test on a host like this one; exit code 4 if one did not."""
    with session(json=json, store=store, apptainer=apptainer) as settings:
        if submitted:
            _show_submission(names, settings, json=json)
        if every is not None:
            if names or root is not None:
                raise RequestError("--all takes no names and no --root", hint="`envbuild status --all DIR`")
            statuses = workflows.status.module_statuses(every, (), settings)
        elif not names:
            hint = "`envbuild status IMAGE.sif`, `--root DIR NAME/VERSION` for a module, or `--all DIR`"
            raise RequestError("no image or module is named", hint=hint)
        elif root is not None:
            statuses = workflows.status.module_statuses(root, names, settings)
        else:
            images = [workflows.images.image_file(Path(name), settings) for name in names]
            statuses = workflows.status.image_statuses(images, settings)
    if json:
        print_json([_data(status) for status in statuses])
    else:
        names = [status.name for status in statuses]
        for status in statuses:
            # Images of one name and version, as of one that was extended twice, differ by their files.
            file = f" ({status.path})" if names.count(status.name) > 1 else ""
            print_data(f"{status.word:<8} {status.name}{file}: {status.text}")
    raise typer.Exit(0 if all(status.state == "passed" for status in statuses) else 4)


def _show_submission(names: list[str] | None, settings: Settings, *, json: bool) -> NoReturn:
    if names:
        hint = "`envbuild status --submitted` shows all its members"
        raise RequestError("--submitted takes no names", hint=hint)
    state = workflows.submit.submission_state(settings)
    if state is None:
        hint = "`envbuild build --submit` submits builds; --store DIR names another store"
        raise RequestError(f"nothing was submitted over the store `{settings.store.path}`", hint=hint)
    submission.show(state, json=json)


def _data(status: Status) -> dict[str, Any]:
    verdict = status.verdict
    return {
        "name": status.name,
        "path": status.path,
        "state": status.state,
        "outcome": verdict.outcome if verdict else None,
        "when": verdict.when if verdict else None,
        "ranks": verdict.ranks if verdict else None,
        "gpu_untested": bool(verdict and verdict.gpu_untested),
        "failed": verdict.failed if verdict else (),
        "changed": verdict.changed if verdict else (),
        "image_changed": status.changed,
        "host": verdict.fingerprint if verdict else None,
    }
