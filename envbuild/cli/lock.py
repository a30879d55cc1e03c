"""`envbuild lock`: from a spec to exact files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message
from envbuild.cli.progress import session
from envbuild.errors import RequestError


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
    names = None if upgrade is None else () if "*" in upgrade else tuple(upgrade)
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        if check:
            changes = workflows.lock.lock_changes(spec, settings)
            stale = workflows.lock.stale_targets(spec, settings)
            if json:
                path = workflows.lock.lock_path(spec)
                print_json({"lock": path, "changed": changes, "stale_targets": stale})
            for sentence in stale:
                print_message(sentence)
            if changes:
                workflows.lock.reject_lock(spec, changes)
            print_message(f"{workflows.lock.lock_path(spec)}: satisfies the spec")
            return
        locked = workflows.lock.lock_spec(
            spec, settings, upgrade=names, offline=offline, sources=sources or ()
        )
        exported = workflows.lock.write_pylock(locked, to, settings.store.path) if to is not None else None
    if json:
        compatibility = [result.to_data() for result in locked.rule_results]
        print_json(
            {
                "lock": locked.path,
                "changed": locked.changes,
                "stale_targets": locked.stale_targets,
                "compatibility": compatibility,
            }
        )
    if exported is not None:
        print_message(f"{exported}: {len(locked.lock.python)} Python packages")
    if locked.resolved.why_release:
        print_message(f"accelerator: {locked.resolved.why_release}")
    for change in locked.changes:
        print_message(f"  {change}")
    for sentence in locked.stale_targets:
        print_message(f"  {sentence}")
    print_message(
        f"{locked.path}: {len(locked.lock.pins)} packages, {'written' if locked.changes else 'unchanged'}"
    )
