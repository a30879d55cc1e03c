"""`envbuild plan`: what a build would do, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.members import finish_members
from envbuild.cli.output import level, print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import RequestError, pluralize
from envbuild.quoting import shell_path

if TYPE_CHECKING:
    from envbuild.workflows.plan import Plan, PlannedLayer, PlanTotal

# Layers that are listed without being asked for: with all else at most ten lines.
_SHOWN = 4
_NAMED = 4
_WHEEL = "wheel:"


def command(
    specs: options.Specs,
    upgrade: options.Upgrade = None,
    system: Annotated[bool, typer.Option("--system", help="With --upgrade: Debian packages alone.")] = False,
    compression: options.CompressionOption = "zstd",
    offline: options.Offline = False,
    store: options.Store = None,
    upstream: options.Upstream = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    architecture: options.Architecture = None,
    json: options.Json = False,
) -> None:
    """Show what builds would fetch and build, and why. Changes nothing.

    Of several specs it shows the costs of each, and of all together: a layer
    that several need counts once. With --upgrade, that of newer packages.
    """
    if system and upgrade is None:
        hint = f"`envbuild plan {shell_path(specs[0])} --upgrade --system`"
        raise RequestError("`--system` says what `--upgrade` is about", hint=hint)
    with session(json=json, store=store, recipes=recipes, site=site, architecture=architecture) as settings:
        plans, total = workflows.plan.show_plans(
            workflows.specs.specs_of(specs, settings.emit),
            settings,
            compression=compression,
            offline=offline,
            upstreams=upstream or (),
            upgrade=options.names_to_upgrade(upgrade),
            upgrades_system_alone=system,
        )
    if plans.many:
        lines = _total_lines(total) if plans.done else []
        finish_members(plans, row=_row, data=_data, json=json, summary={"total": total}, lines=lines)
    elif json:
        print_json(_data(plans.only))
    else:
        for line in _lines(plans.only, verbose=level() > 0):
            print_data(line)


def _data(plan: Plan) -> dict[str, object]:
    return {
        "lock_changes": plan.lock_changes,
        "layers": plan.layers,
        "image": plan.image,
        "compatibility": [result.to_data() for result in plan.rule_results],
    }


def _row(plan: Plan) -> list[str]:
    """Return the cells of a spec in the table: whether it is built, and its own costs."""
    to_build = sum(layer.state == "build" for layer in plan.layers)
    if not to_build:
        return ["up to date", "all layers are in the store"]
    fetched = f"; to fetch: {_files(plan.files, plan.size_bytes)}" if plan.files else ""
    return ["build", f"{to_build} of {pluralize(len(plan.layers), 'layer')}{fetched}"]


def _total_lines(total: PlanTotal) -> list[str]:
    """Return the costs of all specs together."""
    to_build = "nothing"
    if total.layers:
        layers = pluralize(total.layers, "distinct layer")
        to_build = f"{layers}, which need about {total.store_bytes / 1e6:.0f} MB"
    return [
        f"all, to fetch: {_files(total.files, total.size_bytes)}",
        f"all, to build: {to_build}; {total.cached} in the store",
    ]


def _files(number: int, size_bytes: int) -> str:
    return f"{pluralize(number, 'file')}, {size_bytes / 1e6:.1f} MB" if number else "nothing"


def _lines(plan: Plan, *, verbose: bool) -> Iterator[str]:
    """Yield what is to be fetched and built. At most `_SHOWN` rows for layers, unless `verbose`."""
    yield f"to fetch: {_files(plan.files, plan.size_bytes)}"
    to_build = [layer for layer in plan.layers if layer.state == "build"]
    reused = sum(layer.state == "cached" for layer in plan.layers)
    yield f"to build: {pluralize(len(to_build), 'layer') if to_build else 'nothing'}; {reused} in the store"
    if verbose:
        width = max(len(layer.name) for layer in plan.layers)
        for layer in plan.layers:
            row = f"  {layer.state:<8} {layer.name:<{width}}  {layer.key[7:19]}  {layer.reason}"
            yield row.rstrip()
        yield f"image: {pluralize(len(plan.image), 'layer')}, {plan.image[0]} at the bottom"
        return
    rows = list(_rows(to_build))
    if len(rows) > _SHOWN:
        rest = len(rows) - _SHOWN + 1
        rows = [*rows[: _SHOWN - 1], ("", f"and {rest} more (`-v` lists them)")]
    width = max((len(name) for name, _ in rows), default=0)
    for name, reason in rows:
        yield f"  {name:<{width}}  {reason}"


def _rows(to_build: Sequence[PlannedLayer]) -> Iterator[tuple[str, str]]:
    """Yield names and reasons of layers; wheels that are built for one reason are one row."""
    wheels: dict[str, list[str]] = {}
    for layer in to_build:
        if layer.name.startswith(_WHEEL):
            wheels.setdefault(layer.reason, []).append(layer.name.removeprefix(_WHEEL))
        else:
            yield layer.name, layer.reason
    for reason, names in wheels.items():
        if len(names) == 1:
            yield _WHEEL + names[0], reason
        else:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            yield pluralize(len(names), "wheel"), f"{reason}: {', '.join(names[:_NAMED])}{more}"
