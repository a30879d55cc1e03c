"""`envbuild lock`: from a spec to the exact files it means."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Optional

import typer

from envbuild.cli.options import (
    FromOption,
    JsonOption,
    OfflineOption,
    RecipesOption,
    SiteOption,
    SpecArgument,
    StoreOption,
)
from envbuild.cli.streams import put, say


def command(
    spec: SpecArgument,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 2 if the lock does not satisfy the spec.")
    ] = False,
    upgrade: Annotated[
        Optional[list[str]],  # noqa: UP045  # typer reads it at run time
        typer.Option(
            "--upgrade", metavar="[NAME…]", help="Take newer versions: of these packages, or of all."
        ),
    ] = None,
    sources: FromOption = None,
    offline: OfflineOption = False,
    store: StoreOption = None,
    recipes: RecipesOption = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Write STEM.lock.yaml: every package with version, origin, size and sha256."""
    from envbuild.cli.listen import listening  # noqa: PLC0415  # start-up time
    from envbuild.workflows.lock import lock_changes, lock_path, lock_spec, refuse  # noqa: PLC0415
    from envbuild.workflows.settings import Settings  # noqa: PLC0415

    names = None if upgrade is None else () if "*" in upgrade else tuple(upgrade)
    with listening(json=json) as emit:
        settings = Settings.of(store=store, apptainer=None, recipes=recipes, site=site, emit=emit)
        if check:
            changes = lock_changes(spec, settings)
            if json:
                put(json_text.dumps({"lock": str(lock_path(spec)), "changed": list(changes)}))
            refuse(spec, changes)
            say(f"{lock_path(spec)}: satisfies the spec")
            return
        locked = lock_spec(
            spec,
            settings,
            upgrade=names,
            offline=offline,
            sources=tuple(sources or ()),
        )
    if json:
        judged = [verdict.to_data() for verdict in locked.verdicts]
        data = {"lock": str(locked.path), "changed": list(locked.changes), "compatibility": judged}
        put(json_text.dumps(data))
    for change in locked.changes:
        say(f"  {change}")
    say(f"{locked.path}: {len(locked.lock.pins)} packages, {'written' if locked.changes else 'unchanged'}")
