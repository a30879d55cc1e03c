"""`envbuild doctor`: the problems of this machine, and their fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_data, print_json
from envbuild.cli.progress import session

if TYPE_CHECKING:
    from envbuild.doctor.model import Diagnostic
    from envbuild.workflows.doctor import Diagnosis


def command(
    verb: Annotated[
        str | None, typer.Argument(metavar="[VERB]", help="Only what concerns one verb: build, test, …")
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Also try each address that packages come from.")
    ] = False,
    architecture: Annotated[
        Literal["amd64", "arm64"] | None,
        typer.Option(
            "--architecture",
            help="Also whether images for this processor can be built and tried here.",
            show_default=False,
        ),
    ] = None,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Show the problems of this machine: which verbs they concern, why, and the command that fixes each.

    Exit code 5 if a verb cannot work here.
    """
    with session(
        json=json, store=store, apptainer=apptainer, site=site, architecture=architecture
    ) as settings:
        diagnosis = workflows.doctor.diagnose(verb, settings, online=online)
    if json:
        print_json(_data(diagnosis))
    else:
        print_data(_text(verb, diagnosis))
    if not all(diagnosis.works.values()):
        raise typer.Exit(5)


def _data(diagnosis: Diagnosis) -> dict[str, object]:
    problems = [
        {
            "id": problem.id,
            "severity": problem.severity,
            "verbs": list(problem.verbs),
            "problem": problem.problem,
            "why": problem.why,
            "fix": problem.fix,
            "who": problem.who,
        }
        for problem in diagnosis.problems
    ]
    return {"verbs": diagnosis.works, "findings": problems}


def _text(verb: str | None, diagnosis: Diagnosis) -> str:
    """Return three lines for each problem, and a summary."""
    blocked = sorted(name for name, works in diagnosis.works.items() if not works)
    summary = f"{verb or 'all verbs'} can work here"
    if blocked:
        summary = f"cannot work here: {', '.join(blocked)}"
    elif diagnosis.problems:
        summary += ", with the warnings above"
    return "\n".join([*map(_problem_text, diagnosis.problems), summary])


def _problem_text(problem: Diagnostic) -> str:
    who = "" if problem.who == "you" else f" ({problem.who})"
    return (
        f"{problem.severity.upper():<8}{problem.id}: {problem.problem}\n"
        f"        {', '.join(problem.verbs)}: {problem.why}\n"
        f"        fix{who}: {problem.fix}"
    )
