"""`envbuild plan`: what a build would do, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from envbuild import workflows
from envbuild.cli import options
from envbuild.cli.output import level, print_data, print_json
from envbuild.cli.progress import session
from envbuild.errors import pluralize

if TYPE_CHECKING:
    from envbuild.workflows.plan import Plan, PlannedLayer

# Layers that are listed without being asked for: with all else at most ten lines.
_SHOWN = 4
_NAMED = 4
_WHEEL = "wheel:"


def command(
    spec: options.Spec,
    compression: options.CompressionOption = "zstd",
    offline: options.Offline = False,
    store: options.Store = None,
    upstream: options.Upstream = None,
    recipes: options.Recipes = None,
    site: options.Site = None,
    json: options.Json = False,
) -> None:
    """Show what a build would fetch and build, and why. Changes nothing."""
    with session(json=json, store=store, recipes=recipes, site=site) as settings:
        plan = workflows.plan.show_plan(
            spec, settings, compression=compression, offline=offline, upstreams=upstream or ()
        )
    if json:
        print_json(
            {
                "lock_changes": plan.lock_changes,
                "layers": plan.layers,
                "image": plan.image,
                "compatibility": [result.to_data() for result in plan.rule_results],
            }
        )
        return
    for line in _lines(plan, verbose=level() > 0):
        print_data(line)


def _lines(plan: Plan, *, verbose: bool) -> Iterator[str]:
    """Yield what is to be fetched and built. At most `_SHOWN` rows for layers, unless `verbose`."""
    fetched = f"{pluralize(plan.files, 'file')}, {plan.size_bytes / 1e6:.1f} MB" if plan.files else "nothing"
    yield f"to fetch: {fetched}"
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
