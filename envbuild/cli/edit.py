"""`envbuild add` and `envbuild remove`: one package of a spec more or less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import print_json, print_message, print_next
from envbuild.cli.progress import session
from envbuild.errors import RequestError
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from pathlib import Path

    from envbuild.workflows.edit import Edited

NoLock = Annotated[bool, typer.Option("--no-lock", help="Leave the lock as it is.")]


def add(
    spec: options.Spec,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…", help="A recipe (`pytorch@2.13`) or a Python package (`scipy>=1.11`)."
        ),
    ],
    system: Annotated[bool, typer.Option("--system", help="The names are Debian packages.")] = False,
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Build these Python packages: they have no wheel.")
    ] = False,
    no_lock: NoLock = False,
    store: options.Store = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Add packages to a spec, or change their versions, and lock it.

    Comments and order of the spec stay. Nothing is written if a package does
    not exist or does not fit.
    """
    if system and from_source:
        raise RequestError(
            "`--system` and `--from-source` exclude each other", hint="Debian packages are never built"
        )
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        edited = workflows.edit.add_packages(
            spec, names, settings, system=system, from_source=from_source, lock=not no_lock
        )
    _print(spec, edited, options.given_again(recipes=recipes, site=site), json=json)


def remove(
    spec: options.Spec,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="A recipe or package.")],
    no_lock: NoLock = False,
    store: options.Store = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Remove packages from a spec, and lock it. Comments and order of the spec stay."""
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        edited = workflows.edit.remove_packages(spec, names, settings, lock=not no_lock)
    _print(spec, edited, options.given_again(recipes=recipes, site=site), json=json)


def _print(spec: Path, edited: Edited, given: str, *, json: bool) -> None:
    locked = edited.locked
    if json:
        entries = {"spec": spec, "edited": edited.changes}
        if locked is not None:
            entries |= {
                "lock": locked.path,
                "changed": locked.changes,
                "stale_targets": locked.stale_targets,
            }
        print_json(entries)
    for change in edited.changes or ("unchanged",):
        print_message(f"{spec}: {change}")
    if locked is not None:
        for change in locked.changes:
            if change not in edited.changes:
                print_message(f"  {change}")
        for sentence in locked.stale_targets:
            print_message(f"  {sentence}")
        state = "written" if locked.changes else "unchanged"
        print_message(f"{locked.path}: {len(locked.lock.pins)} packages, {state}")
    if edited.changes or (locked is not None and locked.changes):
        print_next(f"{'build' if locked is not None else 'lock'} {shell_path(spec)}{given}")
