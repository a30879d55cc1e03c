"""The table, the JSON and the exit code of a command that took several files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from envbuild.cli.output import (
    columns,
    error_data,
    escape,
    print_data,
    print_json,
    print_message,
    print_messages,
)
from envbuild.errors import EnvbuildError, pluralize, render, some

if TYPE_CHECKING:
    from envbuild.workflows.members import Member, Members

T = TypeVar("T")


def finish_members(
    members: Members[T],
    *,
    row: Callable[[T], Sequence[str]],
    data: Callable[[T], object],
    json: bool,
    code: Callable[[T], int] = lambda _: 0,
    summary: Mapping[str, object] | None = None,
    lines: Sequence[str] = (),
) -> None:
    """Print a table with a row for each member, or JSON, then the errors; exit with the gravest code.

    `row` gives the cells of a result: a word for its state, then what stands behind the name; all rows have
    as many. `data` is the JSON of a result, as for one file; `summary` and `lines` are about all members, as
    JSON and behind the table.
    """
    from envbuild.workflows.members import problem_of  # noqa: PLC0415  # help and completion load none of it

    if json:
        print_json(members_data(members, data=data, code=code, summary=summary))
    else:
        rows = {member.name: list(row(member.get())) for member in members.done}
        width = max([2, *map(len, rows.values())])
        table = []
        for member in members.items:
            cells = rows.get(member.name) or ["failed", problem_of(member.error)]
            state, *rest = [*cells, *[""] * (width - len(cells))]
            table.append([state, member.name, *rest])
        print_data("\n".join([columns(table), *lines]))
    _print_errors(members)
    exit_code = members.exit_code(code)
    if members.failed:
        done = sum(code(member.get()) == 0 for member in members.done)
        failures = pluralize(len(members.items) - done, "failure")
        print_message(f"{done} of {len(members.items)} done, {failures}", problem=True)
    if exit_code:
        raise typer.Exit(exit_code)


def members_data(
    members: Members[T],
    *,
    data: Callable[[T], object],
    code: Callable[[T], int],
    summary: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return members as JSON data; `data`, `code` and `summary` as of `finish_members`."""
    return {"members": [_data(member, data, code) for member in members.items], **(summary or {})}


def _data(member: Member[T], data: Callable[[T], object], code: Callable[[T], int]) -> dict[str, Any]:
    return {
        "name": member.name,
        "path": member.path,
        "exit_code": member.error.exit_code if member.error is not None else code(member.get()),
        "errors": error_data(member.error) if member.error is not None else [],
        "result": data(member.get()) if member.error is None else None,
    }


def _print_errors(members: Members[T]) -> None:
    """Print each error once, behind the names of the members that have it."""
    names: dict[str, list[str]] = {}
    for member in members.failed:
        if isinstance(member.error, EnvbuildError):
            names.setdefault(render(member.error), []).append(member.name)
    for text, owners in names.items():
        print_messages(f"{escape(some(owners))}:\n{text}", problem=True)
