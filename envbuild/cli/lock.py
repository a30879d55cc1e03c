"""`envbuild lock`: from a spec to exact files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message, print_next
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.workflows.lock import Locked
    from envbuild.workflows.settings import Settings


def command(
    spec: options.Spec,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 2 if the lock does not satisfy the spec.")
    ] = False,
    upgrade: Annotated[
        list[str] | None,
        typer.Option(
            "--upgrade", metavar="[NAME…]", help="Take newer versions: of these packages, or of all."
        ),
    ] = None,
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
    json: options.Json = False,
) -> None:
    """Write STEM.lock.yaml: every package with version, origin, size and sha256.

    It renews what the lock has for this machine's architecture, and keeps
    what it has for others.
    """
    if (export is None) != (to is None):
        raise RequestError("`--export` and `--to` need each other", hint="write `--export pylock --to DIR`")
    if system and upgrade is None and not outdated:
        hint = f"`envbuild lock {shell_path(spec)} --upgrade --system` takes newer Debian packages"
        raise RequestError("`--system` says what `--upgrade` or `--outdated` is about", hint=hint)
    if (dry_run or outdated) and (check or export is not None):
        raise RequestError(
            "`--dry-run` and `--outdated` go with neither `--check` nor `--export`",
            hint="run one after the other",
        )
    names = None if upgrade is None else () if "*" in upgrade else tuple(upgrade)
    names = () if outdated and names is None else names
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        if check:
            _check(spec, settings, json=json)
            return
        locked = workflows.lock.lock_spec(
            spec,
            settings,
            upgrade=names,
            upgrades_system_alone=system,
            offline=offline,
            sources=sources or (),
            write=not (dry_run or outdated),
        )
        exported = workflows.lock.write_pylock(locked, to, settings.store.path) if to is not None else None
    if exported is not None:
        print_message(f"{exported}: {len(locked.lock.python)} Python packages")
    _print(locked, json=json)
    if outdated:
        state = "outdated" if locked.changes else "up to date"
        print_message(f"{locked.path}: {state}", problem=bool(locked.changes))
        raise typer.Exit(4 if locked.changes else 0)
    written = "would be written" if dry_run else "written"
    state = written if locked.changes else "unchanged"
    print_message(f"{locked.path}: {len(locked.lock.pins)} packages, {state}")
    if locked.changes and not dry_run:
        print_next(f"build {shell_path(spec)}")


def _check(spec: Path, settings: Settings, *, json: bool) -> None:
    """Print how the lock fails to satisfy its spec; RequestError if it does."""
    changes = workflows.lock.lock_changes(spec, settings)
    stale = workflows.lock.stale_targets(spec, settings)
    path = workflows.arguments.lock_path(spec)
    if json:
        print_json({"lock": path, "changed": changes, "stale_targets": stale})
    for sentence in stale:
        print_message(sentence)
    if changes:
        workflows.lock.reject_lock(spec, changes)
    print_message(f"{path}: satisfies the spec")


def _print(locked: Locked, *, json: bool) -> None:
    """Print what a lock chose and how it differs from the one before."""
    if json:
        print_json(
            {
                "lock": locked.path,
                "changed": locked.changes,
                "stale_targets": locked.stale_targets,
                "compatibility": [result.to_data() for result in locked.rule_results],
            }
        )
    if locked.resolved.why_release:
        print_message(f"accelerator: {locked.resolved.why_release}")
    for line in (*locked.changes, *locked.stale_targets):
        print_message(f"  {line}")
