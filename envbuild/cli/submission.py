"""Options of a submission, and how `build --submit`, `test --submit` and `status --submitted` show one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from envbuild import workflows
from envbuild.cli.output import columns, print_data, print_json, print_message, print_messages
from envbuild.errors import some

if TYPE_CHECKING:
    from envbuild.workflows.submit import JobOptions, MemberState, SubmissionState

# Logs that are named behind a failure that several members have.
_MOST_LOGS = 4

Submit = Annotated[
    bool,
    typer.Option("--submit", help="Run as arrays of Slurm jobs over this store, and do not wait."),
]
AtOnce = Annotated[
    int | None,
    typer.Option("--at-once", metavar="N", min=1, help="With --submit: run at most so many tasks at a time."),
]


def job_options(
    *,
    partition: str | None,
    account: str | None,
    time: str | None,
    slurm: str | None,
    at_once: int | None,
    paths: Sequence[tuple[str, Path | None]],
) -> JobOptions:
    """Return the options of jobs; `paths` are options of this command that workers get, too."""
    named = workflows.nodes.with_configured({"partition": partition, "account": account, "time": time})
    return workflows.submit.JobOptions(
        words=[*workflows.nodes.configured_words(), *workflows.nodes.option_words(named, slurm)],
        partition=str(named["partition"] or ""),
        at_once=at_once or 0,
        arguments=[f"{name}={value}" for name, value in paths if value is not None],
    )


def show(state: SubmissionState, *, json: bool) -> NoReturn:
    """Show what has become of a submission, and exit with the gravest code of its members."""
    if json:
        print_json(_data(state))
    else:
        print_data(columns([_row(member) for member in state.members]))
        _print_problems(state)
    raise typer.Exit(state.code)


def _print_problems(state: SubmissionState) -> None:
    """Print each warning and each failure once, behind the names of the members that have it."""
    warned: dict[str, list[str]] = {}
    failed: dict[str, list[MemberState]] = {}
    for member in state.members:
        for warning in member.warnings:
            warned.setdefault(warning, []).append(member.name)
        if member.state == "failed":
            failed.setdefault(member.problem, []).append(member)
    for text, names in warned.items():
        print_message(f"warning: {some(names)}: {text}", problem=True)
    for text, members in failed.items():
        print_messages(f"{some([member.name for member in members])}: {text}", problem=True)
        for log in sorted({member.log for member in members} - {""})[:_MOST_LOGS]:
            print_message(f"log: {log}", problem=True)


def _row(member: MemberState) -> tuple[str, ...]:
    jobs = f"jobs {', '.join(member.jobs)}" if member.jobs else ""
    tasks = f"{member.done}/{member.tasks} tasks" if member.tasks else ""
    return member.state, member.name, tasks, jobs, member.text.partition("\n")[0]


def _data(state: SubmissionState) -> dict[str, object]:
    return {
        "job_name": state.job_name,
        "jobs": state.jobs,
        "members": [
            {
                "name": member.name,
                "image": member.image or None,
                "state": member.state,
                "text": member.text,
                "tasks": member.tasks,
                "tasks_done": member.done,
                "jobs": member.jobs,
                "log": member.log or None,
                "warnings": member.warnings,
                "exit_code": member.code,
            }
            for member in state.members
        ],
    }
