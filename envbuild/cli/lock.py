"""`envbuild lock`: from a spec to exact files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.members import finish_members
from envbuild.cli.output import columns, level, print_json, print_message, print_next
from envbuild.cli.progress import session
from envbuild.errors import RequestError, pluralize, some
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.workflows.lock import LockState, LockSummary
    from envbuild.workflows.members import Member, Members
    from envbuild.workflows.settings import Settings

# Specs that are listed behind a change that several have.
_NAMED = 4


def command(
    specs: options.Specs,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 2 if the lock does not satisfy the spec.")
    ] = False,
    upgrade: options.Upgrade = None,
    system: Annotated[
        bool, typer.Option("--system", help="With --upgrade or --outdated: Debian packages alone.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change; write nothing.")
    ] = False,
    outdated: Annotated[
        bool,
        typer.Option(
            "--outdated", help="Write nothing; exit 4 if the spec allows newer versions than the lock has."
        ),
    ] = False,
    export: Annotated[
        Literal["pylock"] | None,
        typer.Option("--export", help="Also write the Python packages for other tools: DIR/pylock.toml."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="A directory that `envbuild fetch` filled.")
    ] = None,
    sources: options.SourceDirectories = None,
    offline: options.Offline = False,
    store: options.Store = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    architecture: options.Architecture = None,
    json: options.Json = False,
) -> None:
    """Write STEM.lock.yaml beside each spec: every package with version, origin, size and sha256.

    It renews what the lock has for the architectures that the spec names,
    by default this machine's, and keeps what it has for others.
    """
    if (export is None) != (to is None):
        raise RequestError("`--export` and `--to` need each other", hint="write `--export pylock --to DIR`")
    if system and upgrade is None and not outdated:
        hint = f"`envbuild lock {shell_path(specs[0])} --upgrade --system` takes newer Debian packages"
        raise RequestError("`--system` says what `--upgrade` or `--outdated` is about", hint=hint)
    if (dry_run or outdated) and (check or export is not None):
        raise RequestError(
            "`--dry-run` and `--outdated` go with neither `--check` nor `--export`",
            hint="run one after the other",
        )
    names = options.names_to_upgrade(upgrade)
    names = () if outdated and names is None else names
    with session(json=json, store=store, recipes=recipes, site=site, architecture=architecture) as settings:
        members = workflows.specs.specs_of(specs, settings.emit)
        if members.many and to is not None:
            raise RequestError(
                "`--export` takes one spec", hint="run it for each spec, with its own --to DIR"
            )
        if check:
            states = members.each(
                lambda member, own: workflows.lock.check_lock(member.path, own), settings, last=True
            )
            _show_states(states, json=json)
            return

        upgrades = workflows.lock.upgrades_of(members, names, system_alone=system)

        def lock(member: Member[None], own: Settings) -> LockSummary:
            locked = workflows.lock.lock_spec(
                member.path,
                own,
                upgrade=upgrades[member.path],
                upgrades_system_alone=system,
                offline=offline,
                sources=sources or (),
                write=not (dry_run or outdated),
            )
            if to is not None:
                exported = workflows.lock.write_pylock(locked, to, settings.store.path)
                print_message(f"{exported}: {len(locked.lock.python)} Python packages")
            return locked.summary

        locked = members.each(lock, settings, threads=workflows.lock.LOCKED_AT_ONCE, last=True)
    state = _State(outdated=outdated, dry_run=dry_run)
    if locked.many:
        finish_members(
            locked,
            row=lambda summary: _row(summary, state),
            data=_data,
            json=json,
            code=state.code,
            lines=tuple(_change_lines(locked)),
        )
    else:
        given = options.given_again(recipes=recipes, site=site, architecture=architecture)
        _show(locked.only, state, given, json=json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The words for the state of a lock, and the exit code."""

    outdated: bool
    dry_run: bool

    def word(self, summary: LockSummary) -> str:
        if self.outdated:
            return "outdated" if summary.changes else "up to date"
        written = "would be written" if self.dry_run else "written"
        return written if summary.changes else "unchanged"

    def code(self, summary: LockSummary) -> int:
        return 4 if self.outdated and summary.changes else 0


def _show(summary: LockSummary, state: _State, given: str, *, json: bool) -> None:
    """Print what the lock of one spec chose and how it differs from the one before."""
    if json:
        print_json(_data(summary))
    if summary.why_release:
        print_message(f"accelerator: {summary.why_release}")
    for line in (*summary.changes, *summary.stale_targets):
        print_message(f"  {line}")
    if state.outdated:
        print_message(f"{summary.path}: {state.word(summary)}", problem=bool(summary.changes))
        raise typer.Exit(state.code(summary))
    print_message(f"{summary.path}: {summary.packages} packages, {state.word(summary)}")
    if summary.changes and not state.dry_run:
        print_next(f"build {shell_path(summary.spec)}{given}")


def _row(summary: LockSummary, state: _State) -> list[str]:
    changes = [pluralize(len(summary.changes), "change")] if summary.changes else []
    return [
        state.word(summary),
        ", ".join((f"{summary.packages} packages", *changes)),
        *summary.stale_targets[:1],
    ]


def _change_lines(locked: Members[LockSummary]) -> Iterator[str]:
    """Yield each change of a lock once, with the specs that have it; of many specs the first, unless `-v`."""
    specs: dict[str, list[str]] = {}
    for member in locked.done:
        for change in member.get().changes:
            specs.setdefault(change, []).append(member.name)
    if specs:
        most = len(locked.items) if level() > 0 else _NAMED
        rows = [(change, pluralize(len(names), "spec"), some(names, most)) for change, names in specs.items()]
        yield from ("changes:", columns(sorted(rows)))


def _data(summary: LockSummary) -> dict[str, object]:
    return {
        "lock": summary.path,
        "changed": summary.changes,
        "stale_targets": summary.stale_targets,
        "compatibility": [result.to_data() for result in summary.rule_results],
    }


def _show_states(states: Members[LockState], *, json: bool) -> None:
    """Print how locks fail to satisfy their specs; exit code 2 if one does, for one spec a RequestError."""
    if states.many:
        finish_members(
            states,
            row=lambda state: [
                "differs" if state.changes else "satisfies",
                some((*state.changes, *state.stale_targets), 2),
            ],
            data=_state_data,
            json=json,
            code=lambda state: 2 if state.changes else 0,
        )
        return
    state = states.only
    if json:
        print_json(_state_data(state))
    for sentence in state.stale_targets:
        print_message(sentence)
    if state.changes:
        workflows.lock.reject_lock(state.spec, state.changes)
    print_message(f"{state.path}: satisfies the spec")


def _state_data(state: LockState) -> dict[str, object]:
    return {"lock": state.path, "changed": state.changes, "stale_targets": state.stale_targets}
