"""`envbuild status`: whether images and modules passed their test, and which packages they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild import workflows
from envbuild.cli import options, submission
from envbuild.cli.members import finish_members, members_data
from envbuild.cli.output import columns, print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import RequestError

if TYPE_CHECKING:
    from envbuild.workflows.members import Members
    from envbuild.workflows.packages import PackageAnswer
    from envbuild.workflows.status import Status


def command(
    images: options.Images = None,
    root: options.ModuleRoot = None,
    every: options.EveryImage = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            metavar="NAME[RANGE]",
            help="Show instead which hold this Debian or Python package: 'libssl3<3.0.15' (repeatable).",
        ),
    ] = None,
    submitted: Annotated[
        bool,
        typer.Option("--submitted", help="Show what became of the last `build --submit` or `test --submit`."),
    ] = False,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    json: options.Json = False,
) -> None:
    """Show which images or modules passed their test on a host like this one; exit code 4 if one did not.

    With --package, exit code 4 if one holds the package, or does not say what it holds.
    """
    with session(json=json, store=store, apptainer=apptainer) as settings:
        if submitted:
            if images or root is not None or every or packages:
                hint = "`envbuild status --submitted` shows all that was submitted"
                raise RequestError("--submitted takes no images", hint=hint)
            submission.show(workflows.submit.last_submission(settings), json=json)
        named = workflows.images.named_images(settings, images or (), root=root, every=every or ())
        if packages:
            answers = workflows.packages.find_packages(named, packages, settings)
        else:
            statuses = workflows.status.statuses(named, settings)
    if packages:
        finish_packages(answers, packages, json=json)
        return
    if statuses.many:
        finish_members(
            statuses,
            row=lambda status: (status.word, status.line),
            data=status_data,
            json=json,
            code=_code,
        )
        return
    status = statuses.only
    if json:
        print_json(status_data(status))
    else:
        print_data(f"{status.word:<8} {status.name}: {status.text}")
    raise typer.Exit(_code(status))


def _code(status: Status) -> int:
    return 0 if status.state == "passed" else 4


def status_data(status: Status) -> dict[str, Any]:
    """Return the status of an image as JSON data."""
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
        "problems": status.problems,
        "outdated": status.outdated,
        "retired_until": status.retired_until.isoformat() if status.retired_until is not None else None,
        "deprecated_on": status.deprecation.on.isoformat() if status.deprecation is not None else None,
        "use": status.deprecation.use if status.deprecation is not None else None,
        "host": verdict.fingerprint if verdict else None,
    }


def finish_packages(answers: Members[PackageAnswer], queries: list[str], *, json: bool) -> None:
    """Print the images that hold packages, then those that may; exit code 4 if there are any."""
    pairs = [(member, member.get()) for member in answers.items]
    if json:
        print_json(members_data(answers, data=_answer_data, code=_answer_code, summary={"queries": queries}))
    else:
        shown = [
            (answer.state, member.name, answer.text)
            for state in ("holds", "unknown")
            for member, answer in pairs
            if answer.state == state
        ]
        numbers = {state: sum(answer.state == state for _, answer in pairs) for state in ("holds", "unknown")}
        summary = (
            f"{' or '.join(queries)}: {numbers['holds']} of {len(pairs)} hold it,"
            f" {numbers['unknown']} do not say"
        )
        print_data("\n".join([*([columns(shown)] if shown else []), summary]))
    raise typer.Exit(answers.exit_code(_answer_code))


def _answer_code(answer: PackageAnswer) -> int:
    return 0 if answer.state == "lacks" else 4


def _answer_data(answer: PackageAnswer) -> dict[str, Any]:
    return {
        "state": answer.state,
        "packages": answer.found,
        "undecided": answer.undecided,
        "unknown": answer.gaps,
    }
