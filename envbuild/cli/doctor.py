"""`envbuild doctor`: the problems of this machine, and their fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import columns, print_data, print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError, raise_all

if TYPE_CHECKING:
    from envbuild.doctor.model import Diagnostic
    from envbuild.workflows.doctor import Diagnosis


def command(
    context: typer.Context,
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
    config: Annotated[
        bool, typer.Option("--config", help="Show instead each configured value, and what sets it.")
    ] = False,
    store: options.Store = None,
    apptainer: options.Apptainer = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Show the problems of this machine: which verbs they concern, why, and the command that fixes each.

    Exit code 5 if a verb cannot work here.
    """
    if config:
        # Typer also takes these options from variables.
        of_command_line = {
            name: value
            for name, value in (("store", store), ("apptainer", apptainer), ("site", site))
            if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
        }
        given = options.first_given(
            verb=verb, online=online, architecture=architecture, site=of_command_line.pop("site", None)
        )
        if given:
            problem = "--config shows the configuration alone"
            raise RequestError(problem, hint=f"leave {'VERB' if given == '--verb' else given} out")
        _show_configuration(of_command_line, json=json)
        return
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


def _show_configuration(given: Mapping[str, Path | None], *, json: bool) -> None:
    """Show the values, then the notes and the errors of the files; raises the latter."""
    shown = workflows.configuration.show_configuration(given)
    if json:
        errors = [
            {"problem": error.problem, "place": str(error.at) if error.at else None, "hint": error.hint}
            for error in shown.errors
        ]
        files = [{"path": path, "exists": is_there} for path, is_there in shown.files.items()]
        values = [asdict(value) for value in shown.values]
        print_json({"files": files, "values": values, "notes": shown.notes, "errors": errors})
    else:
        rows = [(value.key, _value_text(value.value), value.origin) for value in shown.values]
        print_data(columns(rows))
    for path, is_there in shown.files.items():
        print_message(f"{path}: {'exists' if is_there else 'does not exist'}")
    for note in shown.notes:
        print_message(f"note: {note}")
    raise_all(shown.errors)


def _value_text(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)


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
