"""The table, the JSON and the exit code of a command that took several files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from envbuild.cli.output import columns, escape, print_data, print_json, print_message, print_messages
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
        print_json({"members": [_data(member, data, code) for member in members.items], **(summary or {})})
    else:
        rows = {member.name: list(row(member.get())) for member in members.done}
        width = max(map(len, rows.values()), default=2)
        table = []
        for member in members.items:
            cells = rows.get(member.name) or ["failed", problem_of(member.error)]
            state, *rest = [*cells, *[""] * (width - len(cells))]
            table.append([state, member.name, *rest])
        print_data("\n".join([columns(table), *lines]))
    _print_errors(members)
    exit_code = members.exit_code(code)
    if members.failed:
        failed = pluralize(len(members.failed), "failure")
        print_message(f"{len(members.done)} of {len(members.items)} done, {failed}", problem=True)
    if exit_code:
        raise typer.Exit(exit_code)


def _data(member: Member[T], data: Callable[[T], object], code: Callable[[T], int]) -> dict[str, Any]:
    errors = member.error.each() if member.error is not None else ()
    return {
        "name": member.name,
        "path": member.path,
        "exit_code": member.error.exit_code if member.error is not None else code(member.get()),
        "errors": [
            {"problem": error.problem, "hint": error.hint, "at": str(error.at) if error.at else None}
            for error in errors
        ],
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
